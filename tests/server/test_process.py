"""The server as a process: killed, restarted, checked, and protected by tokens."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.server.fake import Engine, Trouble, serving
from tests.server.harness import ADD, World, result, world
from trajgym.server import App, ServerConfig, Upstream, running
from trajgym.trajectory import InvalidInput, Run, Store

USER = {"role": "user", "content": "go"}
CALL = {"text": "so", "calls": [("add", {"a": 1, "b": 2})]}


def command(path: Path, url: str, port: int, *more: str) -> list[str]:
    where = ["--upstream", url, "--port", str(port), "--renderer", "bytes"]
    return [sys.executable, "-m", "trajgym.cli", "serve", str(path), *where, *more]


@asynccontextmanager
async def server(
    path: Path, url: str, port: int, *more: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Start the command, wait until it answers, and kill it at the end."""
    process = subprocess.Popen(command(path, url, port, *more))
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            while True:
                assert process.poll() is None
                try:
                    async with http.get(f"http://127.0.0.1:{port}/health") as got:
                        if got.status == 200:
                            break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


async def test_open_sessions_go_on_after_a_kill(tmp_path: Path) -> None:
    """SIGKILL with 100 open sessions, one of them in a call: all continue, and nothing is lost."""
    port = free_port()
    engine = Engine(lambda n, body: CALL, [Trouble(100, "gate")])
    async with serving(engine) as fake, aiohttp.ClientSession() as http:

        async def post(path: str, body: Any) -> Any:
            async with http.post(f"http://127.0.0.1:{port}{path}", json=body) as got:
                assert got.status in {200, 201}, await got.text()
                return await got.json()

        async def step(i: int, messages: list[Any]) -> None:
            path = f"/sessions/s{i}/v1/chat/completions"
            answer = await post(path, {"model": "fake", "messages": messages, "tools": [ADD]})
            said = answer["choices"][0]["message"]
            messages += [said, *(result(call, "3") for call in said["tool_calls"])]

        histories: list[list[Any]] = [[USER] for _ in range(100)]
        async with server(tmp_path, fake.url, port) as process:
            await asyncio.gather(*(post("/api/sessions", {"id": f"s{i}"}) for i in range(100)))
            await asyncio.gather(*(step(i, h) for i, h in enumerate(histories)))
            open_call = asyncio.ensure_future(step(0, histories[0]))
            await post("/api/control/version", {"version": 4})
            async with asyncio.timeout(60):
                while len(engine.requests) < 101:
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await open_call
        engine.gate.set()
        async with server(tmp_path, fake.url, port):
            await asyncio.gather(*(step(i, h) for i, h in enumerate(histories)))
            await asyncio.gather(
                *(post(f"/api/sessions/s{i}/close", {"score": 1.0}) for i in range(100))
            )
    with Run(tmp_path) as run:
        trees = list(run.sessions())
    assert len(trees) == 100
    for tree in trees:
        assert [(t.parent, t.edge, t.delivery) for t in tree.turns] == [
            (None, "continue", "delivered"),
            (0, "continue", "delivered"),
        ]
        assert str(tree.attempts[0].status) == "completed"
        assert tree.turns[1].tokens is not None
        assert tree.turns[1].tokens.segments[0].version_low == 4


async def test_an_answer_written_by_a_killed_server_is_replayed(tmp_path: Path) -> None:
    """A turn that was stored but not delivered is sent unchanged to the retry after a restart."""
    from trajgym.server.sessions import SessionBook

    async with world(tmp_path / "a", [CALL], Trouble(0, "gate")) as w:
        await w.create()
        post = asyncio.ensure_future(w.chat([USER], tools=[ADD]))
        await w.engine.arrived.wait()
        post.cancel()
        await asyncio.wait({post})
        live = w.app.book.find("s")
        async with asyncio.timeout(60):
            while live.running[0].listeners:  # the server has not noticed yet that it left
                await asyncio.sleep(0.01)
            w.engine.gate.set()
            while live.running:
                await asyncio.sleep(0.01)
        w.app.book._live.clear()  # as a new process has it
        assert isinstance(w.app.book, SessionBook)
        answer = await w.chat([USER], tools=[ADD])
        (turn,) = w.tree().turns
    assert turn.wire is not None
    assert answer["id"] == turn.wire.call
    assert answer["choices"][0]["message"]["tool_calls"] == turn.message["tool_calls"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("ids", [True, False])
async def test_check_fails_loudly_without_ids(tmp_path: Path, ids: bool) -> None:
    """`serve --check` ends with 0 only if whole answers and streams carry ids and log-probs."""
    async with serving(Engine(lambda n, body: CALL, ids=ids)) as fake:
        process = await asyncio.create_subprocess_exec(
            *command(tmp_path, fake.url, 1, "--check"), stderr=subprocess.PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == (0 if ids else 1), said
    assert (b"no prompt ids" in said) == (not ids)


# Tokens -------------------------------------------------------------------------------------


@asynccontextmanager
async def guarded(path: Path) -> AsyncIterator[World]:
    config = ServerConfig(secret="root-secret", judge_token="judge-secret")
    async with serving(Engine(lambda n, body: {"text": "hi"})) as fake:
        with Store(path) as store:
            app = App(store, Upstream(base_url=fake.url, api_key="upstream-key"), config)
            async with running(app) as url, aiohttp.ClientSession() as http:
                yield World(fake, app, url, http)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_tokens_open_what_they_are_for(tmp_path: Path) -> None:
    """Admin, session and judge tokens; a session's token is no key to another session."""
    root = bearer("root-secret")
    async with guarded(tmp_path) as w:
        await w.post("/api/sessions", {"id": "a"}, status=401)
        await w.post("/api/sessions", {"id": "a"}, status=401, headers=bearer("judge-secret"))
        opened = await w.post("/api/sessions", {"id": "a"}, status=201, headers=root)
        await w.post("/api/sessions", {"id": "b"}, status=201, headers=root)
        key = opened["api_key"]
        body = {"model": "fake", "messages": [USER]}
        chat = "v1/chat/completions"
        await w.post(f"/sessions/a/{chat}", body, status=401)
        await w.post(f"/sessions/a/{chat}", body, status=401, headers=bearer(key + "x"))
        await w.post(f"/sessions/b/{chat}", body, status=401, headers=bearer(key))
        await w.post(f"/sessions/a/{chat}", body, headers={"x-api-key": key})
        await w.post(f"/{chat}", body, headers=bearer(key))  # the key alone names the session
        await w.post("/api/sessions/a/close", {}, status=401, headers=bearer(key))
        signals = {"turn": 0, "signals": {"good": 1}, "source": "judge"}
        await w.post("/api/sessions/a/signals", signals, headers=bearer("judge-secret"))
        tree = w.tree("a")
    assert len(tree.turns) == 2
    assert tree.turns[0].signals == {"good": 1}
    text = str(tree.to_json())
    assert "upstream-key" not in text
    assert key not in text


def test_a_public_address_needs_a_secret() -> None:
    """Without a secret, the server refuses to bind an address that other machines can reach."""
    from trajgym.server._auth import Auth, check_bind

    check_bind("127.0.0.1", Auth())
    check_bind("::1", Auth())
    check_bind("0.0.0.0", Auth("secret"))
    with pytest.raises(InvalidInput, match="set a secret"):
        check_bind("0.0.0.0", Auth())


async def test_what_is_redacted_is_not_stored(tmp_path: Path) -> None:
    """Redaction applies to the stored text; the engine receives the text unchanged."""
    config = ServerConfig(redact=[r"sk-\w+"])
    async with world(tmp_path, [{"text": "I saw sk-answer"}], config=config) as w:
        await w.create()
        answer = await w.chat([{"role": "user", "content": "my key is sk-secret"}])
        sent = w.engine.requests[0]["messages"][0]["content"]
        (turn,) = w.tree().turns
    assert sent == "my key is sk-secret"
    assert answer["choices"][0]["message"]["content"] == "I saw sk-answer"
    assert turn.context[0]["content"] == "my key is [redacted]"
    assert turn.message["content"] == "I saw [redacted]"


async def test_rewards_roles_and_ends(tmp_path: Path) -> None:
    """Rewards may be late and repeated; roles can be set; a closed session refuses calls."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await w.create(labels={"who": "me"}, group="g1", task={"id": "t", "prompt": "go"})
        answer = await w.chat([USER])
        rewards = {"rewards": [{"call": answer["id"], "reward": 0.5}]}
        for _ in range(2):
            assert await w.post("/api/sessions/s/rewards", rewards) == {"turns": [0]}
        await w.post("/api/sessions/s/rewards", {"rewards": [{"turn": 9, "reward": 1}]}, status=404)
        await w.post("/api/sessions/s/roles", {"turn": 0, "role": "side:probe"})
        await w.create("empty")
        assert (await w.close("empty", score=1.0))["status"] == "failed:agent"
        await w.close(score=0.25, passed=True)
        await w.chat([USER], status=409)
        await w.post("/api/sessions", {"id": "s"}, status=409)
        async with w.http.get(f"{w.url}/api/sessions?status=completed") as got:
            listed = await got.json()
        async with w.http.get(f"{w.url}/api/sessions/s/tree") as got:
            tree = await got.json()
        recorded = w.tree()
    assert [s["id"] for s in listed["sessions"]] == ["s"]
    assert recorded.turns[0].reward == 0.5
    assert recorded.turns[0].role == "side:probe"
    assert recorded.attempts[0].outcome is not None
    assert recorded.attempts[0].outcome.passed
    assert type(recorded).from_json(tree).to_json() == recorded.to_json()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/sessions/s", 200),
        ("HEAD", "/sessions/s/api/hello", 200),
        ("GET", "/sessions/s/v1/models", 200),
        ("POST", "/sessions/s/v1/v1/chat/completions", 200),
        ("POST", "/sessions/s/chat/completions", 200),
        ("POST", "/sessions/s/v1/messages?beta=true", 200),
        ("POST", "/sessions/s/v1/responses/compact", 404),
        ("POST", "/sessions/nobody/v1/chat/completions", 404),
        ("DELETE", "/sessions/s/v1/chat/completions", 405),
    ],
)
async def test_base_urls_that_agents_build(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    """Every form of base URL that was seen works; others are a 404 in JSON."""
    async with world(tmp_path, [{"text": "hi"}]) as w:
        await w.create()
        body = {"model": "fake", "max_tokens": 9, "messages": [USER]} if method == "POST" else None
        async with w.http.request(method, w.url + path, json=body) as got:
            assert got.status == status, await got.text()


def test_the_environment_is_not_printed() -> None:
    """A configuration shows no secret."""
    assert "hush" not in repr(ServerConfig(secret="hush", judge_token="hush"))
