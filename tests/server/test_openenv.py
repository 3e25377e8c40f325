"""Served environments in OpenEnv's protocol, by plain WebSockets and by our own environment.

OpenEnv's own clients and servers are in `tests/interchange/packages/test_openenv.py`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.worlds import PNG, call
from trajgym.envs import Env, EnvSpec, Image, Session, ToolResult, tool, tools_of
from trajgym.server import EnvApp, Limits, ServerConfig, running
from trajgym.trajectory import Run, Task, text_of

ROOT = Path(__file__).parent.parent.parent
COUNTER = EnvSpec(id="tests.worlds:Counter")


class Painter(Env):
    """Shows pictures."""

    def reset(self, task: Task, seed: int | None) -> ToolResult:
        return ToolResult(content=["a canvas", Image(PNG)])

    @tool
    def paint(self) -> ToolResult:
        """Paint."""
        return ToolResult(content=["painted", Image(PNG)], reward=0.25)

    def verify(self) -> float:
        return 1.0


class Talker:
    """One WebSocket, as a client of any language would use it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, kind: str, /, **data: Any) -> Any:
        return await self.raw(json.dumps({"type": kind, "data": data}))

    async def raw(self, text: str) -> Any:
        await self.socket.send_str(text)
        return json.loads((await self.socket.receive(60)).data)


@asynccontextmanager
async def talking(url: str, name: str, query: str = "") -> AsyncIterator[Talker]:
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/envs/{name}/openenv/ws{query}") as socket,
    ):
        yield Talker(socket)


async def test_our_environment_plays_our_server(tmp_path: Path) -> None:
    """An environment that is served in OpenEnv's protocol is an environment again by its URL."""
    async with running(EnvApp({"counter": COUNTER})) as url:
        config = {"url": f"{url}/envs/counter/openenv", "fields": ["text"]}
        spec = EnvSpec(id="openenv", config=config)
        kind: Any = await asyncio.to_thread(spec.resolve)
        assert set(tools_of(kind)) == set(tools_of(COUNTER.resolve()))
        async with Session(spec, Task(id="x"), seed=1) as session:
            assert text_of(session.messages[0]) == "Count to 3."
            seen = await session.step(call(("add", '{"n": 3}'), ("refuse", "{}"), ("add", "[]")))
            assert [text_of(one) for one in seen.observation[:2]] == ["now 3", "Error: I will not"]
            assert [one.status for one in session.turns[0].calls] == ["ok", "error", "invalid"]
            await session.step(call(("finish", "{}")))
            assert session.outcome is not None
            assert session.outcome.score == pytest.approx(0.1 + 1.0 + 1.0)
            assert session.outcome.passed
        async with Session(spec, Task(id="x"), seed=1) as session:
            await session.step(call(("bug", "{}")))
            assert str(session.status) == "failed:env"
            assert session.outcome is None


async def test_pictures_cross_the_protocol(tmp_path: Path) -> None:
    """A picture of an observation is inline; our environment stores it like one of its own."""
    async with running(EnvApp({"painter": EnvSpec(id=f"{__name__}:Painter")})) as url:
        async with talking(url, "painter") as talker:
            opened = (await talker.say("reset"))["data"]["observation"]
            assert opened["text"] == "a canvas"
            (picture,) = opened["images"]
            assert base64.b64decode(picture.removeprefix("data:image/png;base64,")) == PNG
        config = {"url": f"{url}/envs/painter/openenv", "fields": ["text"]}
        spec = EnvSpec(id="openenv", config=config)
        await asyncio.to_thread(spec.resolve)
        async with Session(spec, Task(id="x"), seed=1) as session:
            await session.step(call(("paint", "{}")))
            assert list(session.images.values()) == [PNG]
            assert session.turns[0].reward == 0.25


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ('["reset"]', "UNKNOWN_TYPE"),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE"),
        ('{"type": "reset", "data": 3}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"episode_id": "../x"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": 3}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "fly"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "call_tool"}}', "VALIDATION_ERROR"),
        (
            '{"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": []}}',
            "VALIDATION_ERROR",
        ),
        ('{"type": "step", "data": {"message": {"role": "user"}}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"content": 7}}', "VALIDATION_ERROR"),
    ],
)
async def test_malformed_messages_leave_the_episode_as_it_was(message: str, code: str) -> None:
    """The answer has OpenEnv's code, and the next step is executed as if nothing had happened."""
    async with running(EnvApp({"counter": COUNTER})) as url, talking(url, "counter") as talker:
        await talker.say("reset")
        found = await talker.raw(message)
        assert found["type"] == "error"
        assert found["data"]["code"] == code
        if code == "VALIDATION_ERROR" and "expected a message" not in found["data"]["message"]:
            assert found["data"]["errors"][0]["msg"] == found["data"]["message"]
        seen = await talker.say("step", type="call_tool", tool_name="add", arguments={"n": 2})
        assert seen["data"]["observation"]["result"]["data"] == "now 2"
        assert (await talker.say("state"))["data"]["step_count"] == 1


async def test_a_step_needs_an_episode() -> None:
    """Before reset there is nothing to step; the tools are listed nevertheless."""
    async with running(EnvApp({"counter": COUNTER})) as url, talking(url, "counter") as talker:
        assert (await talker.say("step", content="hi"))["data"]["code"] == "EXECUTION_ERROR"
        assert (await talker.say("state"))["data"] == {"episode_id": None, "step_count": 0}
        listed = await talker.say("step", type="list_tools")
        assert "add" in {one["name"] for one in listed["data"]["observation"]["tools"]}
        request = {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}
        answer = (await talker.say("mcp", **request))["data"]
        assert answer["id"] == 4
        assert "inputSchema" in answer["result"]["tools"][0]


async def test_sessions_of_mcp_over_http_are_shared_and_bounded() -> None:
    """A session of `/mcp` is the WebSocket's that names it; they are limited and closed."""
    config = ServerConfig(limits=Limits(environments=2))
    async with (
        running(EnvApp({"counter": COUNTER}, config)) as url,
        aiohttp.ClientSession() as http,
    ):

        async def rpc(method: str, **params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            async with http.post(f"{url}/envs/counter/openenv/mcp", json=body) as got:
                return await got.json()

        name = (await rpc("openenv/session/create"))["result"]["session_id"]
        call_add = {"name": "add", "arguments": {"n": 2}, "session_id": name}
        assert "reset first" in (await rpc("tools/call", **call_add))["error"]["message"]
        async with talking(url, "counter", f"?session_id={name}") as talker:
            await talker.say("reset")
            assert (await rpc("tools/call", **call_add))["result"]["data"] == "now 2"
            seen = await talker.say("step", type="call_tool", tool_name="add", arguments={})
            assert seen["data"]["observation"]["result"]["data"] == "now 3"
        assert "result" in await rpc("openenv/session/create")
        assert "2 sessions" in (await rpc("openenv/session/create"))["error"]["message"]
        assert (await rpc("openenv/session/close", session_id=name))["result"]["closed"]
        assert "no session" in (await rpc("tools/call", **call_add))["error"]["message"]
        with pytest.raises(aiohttp.WSServerHandshakeError):
            async with talking(url, "counter", f"?session_id={name}"):
                pass


async def test_serve_with_tasks(tmp_path: Path) -> None:
    """`trajgym serve RUN --env ENV --tasks FILE`: an episode names a task, and is recorded."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(
        '{"id": "low", "data": {"number": 3}}\n{"id": "high", "data": {"number": 9}}\n'
    )
    port, run = free_port(), tmp_path / "run"
    options = ["--env", "examples.guess:Guess", "--tasks", str(tasks), "--port", str(port)]
    command = [sys.executable, "-m", "trajgym.cli", "serve", str(run), *options]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        async with asyncio.timeout(120):
            while True:
                assert process.poll() is None
                try:
                    async with talking(f"http://127.0.0.1:{port}", "Guess") as talker:
                        await talker.say("reset", task="high", episode_id="first")
                        seen = await talker.say("step", content="9")
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        assert seen["data"]["done"]
    finally:
        process.terminate()
        process.wait(60)
    with Run(run) as recorded:
        (tree,) = recorded.sessions()
    assert (tree.record.id, tree.record.task) == ("first", "high")
    assert tree.attempts[0].outcome is not None
    assert tree.attempts[0].outcome.passed
