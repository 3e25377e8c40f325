"""Sessions that are played with plain requests: by curl, as the documentation shows."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clock import Forward
from tests.ports import free_port
from tests.server.test_process import bearer
from trajgym.envs import EnvSpec
from trajgym.server import EnvApp, Limits, ServerConfig, running
from trajgym.trajectory import Run, SessionTree, Store

ROOT = Path(__file__).parent.parent.parent
COUNTER = EnvSpec(id="tests.worlds:Counter")


def documented() -> list[str]:
    """Return the commands of the documentation."""
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    section = page.partition("## Sessions by curl")[2]
    found = re.search(r"```text\n(URL=.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1].splitlines()


async def test_the_documented_commands_play_a_session(tmp_path: Path) -> None:
    """`trajgym serve RUN --env ENV` and curl: opened, stepped, forked, rewarded, recorded."""
    port = free_port()
    where = ["--env", "examples.guess:Guess", "--port", str(port)]
    serve = [sys.executable, "-m", "trajgym.cli", "serve", str(tmp_path / "run"), *where]
    process = subprocess.Popen(serve, cwd=ROOT)
    first, *commands = documented()
    url = first.replace("8200", str(port))
    answers: list[Any] = []
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            while True:
                assert process.poll() is None
                try:
                    async with http.get(f"http://127.0.0.1:{port}/envs"):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        for command in commands:
            ran = await asyncio.create_subprocess_exec(
                "bash", "-c", f"{url}; {command}", stdout=subprocess.PIPE
            )
            said, _ = await asyncio.wait_for(ran.communicate(), 60)
            answers.append(json.loads(said))
    finally:
        process.terminate()
        process.wait(60)
    opened, five, six, forked, seven, rewarded, tree, closed = answers
    assert opened["messages"][0]["content"].startswith("Guess my number")
    assert [one["observation"][0]["content"] for one in (five, six)] == ["Higher.", "Higher."]
    assert (forked["attempt"], forked["turns"]) == (1, 1)
    assert (seven["done"], seven["reward"], seven["status"]) == (True, 1.0, "completed")
    assert seven["outcome"]["score"] == 1.0
    assert rewarded == {"turns": [0]}
    assert closed["status"] == "cancelled"
    with Run(tmp_path / "run") as run:
        recorded = run.session("s1")
    assert [turn.message["content"] for turn in recorded.turns] == ["5", "6", "7"]
    assert [str(attempt.status) for attempt in recorded.attempts] == ["cancelled", "completed"]
    assert recorded.turns[0].reward == 0.5
    assert [t.index for t in SessionTree.from_json(tree).turns] == [0, 1, 2]


@asynccontextmanager
async def served(store: Store | None = None, **config: Any) -> AsyncIterator[Any]:
    app = EnvApp({"counter": COUNTER}, ServerConfig(**config), store)
    async with running(app) as url, aiohttp.ClientSession() as http:

        async def ask(path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
            method = "GET" if body is None else "POST"
            where = f"{url}/envs/counter/sessions{path}"
            async with http.request(method, where, json=body, **more) as got:
                data = await got.read()
                assert got.status == status, data
                return json.loads(data)

        yield ask


async def test_tools_are_called_by_name() -> None:
    """A tool call needs no message of the client's own; without a store, nothing is written."""
    async with served() as ask:
        opened = await ask("", {"id": "s", "task": "t"}, 201)
        assert {tool["function"]["name"] for tool in opened["tools"]} >= {"add", "finish"}
        added = await ask("/s/step", {"tool": "add", "arguments": {"n": 3}})
        assert added["observation"][0]["role"] == "tool"
        done = await ask("/s/step", {"tool": "finish"})
        assert done["done"]
        await ask("/s/step", {"text": "more"}, 409)
        assert [one["id"] for one in (await ask(""))["sessions"]] == ["s"]
        await ask("/s/close", {})
        await ask("/s", status=404)


async def test_bad_requests_change_nothing() -> None:
    """Wrong bodies are refused with the reason; a repeated step is not executed again."""
    async with served() as ask:
        await ask("", {"id": "s", "task": "t"}, 201)
        await ask("", {"id": "s", "task": "t"}, 409)
        await ask("", {"task": 3}, 400)
        step = {"turn": 0, "tool": "add", "arguments": {"n": 1}}
        await ask("/s/step", step)
        await ask("/s/step", step, 409)
        for wrong in (
            {},
            {"text": "a", "tool": "add"},
            {"message": {"role": "user", "content": "x"}},
            {"message": "x" * 3, "turn": "one"},
        ):
            await ask("/s/step", wrong, 400)
        await ask("/s/step", {"text": "a", "attempt": 4}, 404)
        await ask("/s/fork", {"turn": 9}, 400)
        await ask("/s/rewards", {"rewards": [{"turn": 5, "reward": 1}]}, 404)
        await ask("/s/nothing", {}, 404)
        assert (await ask("/s"))["turns"] == 1


async def test_sessions_are_bounded_and_guarded(tmp_path: Path) -> None:
    """With a secret a token is needed; at most so many sessions are open; shutdown closes them."""
    limits = Limits(environments=1)
    with Store(tmp_path) as store:
        async with served(store, secret="root", limits=limits) as ask:
            await ask("", {"task": "t"}, 401)
            await ask("", {"id": "a", "task": "t"}, 201, headers=bearer("root"))
            await ask("", {"task": "t"}, 503, headers=bearer("root"))
        with store.read() as run:
            assert str(run.session("a").attempts[0].status) == "cancelled"


async def test_steps_at_the_same_time_are_executed_one_after_another() -> None:
    """Two clients of one session can't interleave."""
    async with served() as ask:
        await ask("", {"id": "s", "task": "t"}, 201)
        step = {"tool": "add", "arguments": {"n": 1}}
        await asyncio.gather(*(ask("/s/step", step) for _ in range(4)))
        assert (await ask("/s"))["turns"] == 4


@pytest.mark.parametrize("path", ["", "/nobody"])
async def test_unknown_environments_are_named(path: str) -> None:
    """A wrong name in the URL is a 404 that lists the environments."""
    app = EnvApp({"counter": COUNTER})
    async with running(app) as url, aiohttp.ClientSession() as http:
        async with http.get(f"{url}/envs/other/sessions{path}") as got:
            assert got.status == 404
            assert "counter" in await got.text()


async def test_a_session_that_can_not_be_closed_keeps_no_other_open(
    tmp_path: Path, forward: Forward, caplog: pytest.LogCaptureFixture
) -> None:
    """Unused sessions and environments are closed although the end of one can't be recorded."""
    store = Store(tmp_path)
    app = EnvApp({"counter": COUNTER}, ServerConfig(limits=Limits(environment_seconds=300)), store)
    async with running(app) as url, aiohttp.ClientSession() as http:
        at = f"{url}/envs/counter"
        async with http.post(f"{at}/sessions", json={"id": "a", "task": "t"}) as got:
            assert got.status == 201
        async with http.post(f"{at}/open", json={"task": {"id": "t"}}) as got:
            assert got.status == 200
        await store.aclose()
        forward(301)
        async with asyncio.timeout(60):
            while app.host.open:
                await asyncio.sleep(0.01)
    assert "session a: closing it failed" in caplog.text
    assert "the store is closed" in caplog.text
