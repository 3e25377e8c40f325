"""MCP both ways, against the official SDK and a public reference server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import mcp
import pytest

from tests.worlds import PNG, Counter
from trajgym.envs import EnvSpec, Session, check_env, register, tool
from trajgym.envs.mcp import McpEnv, McpFault, McpServer
from trajgym.envs.sandbox import SandboxSpec
from trajgym.rollout import call
from trajgym.server import McpService
from trajgym.trajectory import InvalidInput, Outcome, Run, Store, Task

assert Counter
TIME = [sys.executable, "-m", "mcp_server_time"]
TASK = Task(id="t", prompt="What time is it in Paris?")


@register("test/clock")
class Clock(McpEnv):
    """The public reference server of the time, started for each attempt."""

    servers = (McpServer(command=TIME, only=["get_current_time"]),)

    def verify(self) -> Outcome:
        return Outcome(score=1.0, passed=True)


async def test_a_reference_server_gives_an_environment_its_tools() -> None:
    """Schemas are the server's; results, refusals and bad arguments are the agent's to read."""
    async with Session(EnvSpec(id="test/clock"), TASK) as session:
        (schema,) = session.tools
        assert schema["function"]["name"] == "get_current_time"
        assert schema["function"]["parameters"]["required"] == ["timezone"]
        assert session.messages == [{"role": "user", "content": TASK.prompt}]
        step = await session.step(call("get_current_time", timezone="Europe/Paris"))
        assert json.loads(step.observation[0]["content"])["timezone"] == "Europe/Paris"
        step = await session.step(call("get_current_time", timezone="Nowhere"))
        assert "Invalid timezone" in step.observation[0]["content"]
        step = await session.step(call("get_current_time", zone="x"))
        assert "invalid arguments for get_current_time" in step.observation[0]["content"]
        step = await session.step(call("convert_time"))
        assert "unknown tool" in step.observation[0]["content"]
        await session.step("noon")
    statuses = [turn.calls[0].status for turn in session.turns[:-1]]
    assert statuses == ["ok", "error", "invalid", "invalid"]
    assert session.outcome is not None


async def test_an_environment_with_servers_keeps_the_contract() -> None:
    """The conformance check passes, over several attempts and their servers."""
    await check_env(EnvSpec(id="test/clock"), TASK, [call("get_current_time", timezone="UTC")])


def reference(tmp_path: Path) -> list[str]:
    """A server with a picture, an error that kills it, and arguments of any name."""
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return [sys.executable, str(file)]


SERVER = f"""
import os
from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("odd")

@server.tool()
def picture() -> Image:
    "Show something."
    return Image(data={PNG!r}, format="png")

@server.tool()
def die() -> str:
    "End the server."
    os._exit(3)

@server.tool()
def echo(function: str, env: str) -> str:
    "Say it again."
    return function + env

server.run()
"""


@register("test/odd")
class Odd(McpEnv):
    """Servers from the configuration."""

    def verify(self) -> bool:
        return True


async def test_pictures_and_arguments_of_any_name(tmp_path: Path) -> None:
    """A picture becomes an image of the observation; argument names clash with nothing."""
    servers = [{"command": reference(tmp_path), "prefix": "odd_"}]
    async with Session(EnvSpec(id="test/odd", config={"servers": servers}), TASK) as session:
        step = await session.step(call("odd_picture"))
        assert step.observation[0]["content"][0]["type"] == "image_url"
        assert list(session.images.values()) == [PNG]
        step = await session.step(call("odd_echo", function="a", env="b"))
        assert step.observation[0]["content"] == "ab"


async def test_a_server_that_dies_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    """The attempt ends failed:mcp, unscored; so does one whose server never starts."""
    servers = [{"command": reference(tmp_path)}]
    async with Session(EnvSpec(id="test/odd", config={"servers": servers}), TASK) as session:
        await session.step(call("die"))
        assert str(session.status) == "failed:mcp"
    assert session.outcome is None
    config = {"servers": [{"command": ["/nowhere/at/all"]}]}
    with pytest.raises(McpFault, match="nowhere"):
        EnvSpec(id="test/odd", config=config).resolve()  # type: ignore[arg-type]


async def test_what_a_server_wrote_before_it_ended_is_in_the_cause() -> None:
    """A program that is no MCP server: the error has its last output."""
    broken = [sys.executable, "-c", "import sys; sys.exit('no licence found')"]
    with pytest.raises(McpFault, match="no licence found"):
        EnvSpec(id="test/odd", config={"servers": [{"command": broken}]}).resolve()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, "either 'command' or 'url'"),
        ({"command": ["x"], "url": "http://x"}, "either"),
        ({"url": "http://x", "where": "sandbox"}, "need a 'command'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(server: dict[str, Any], said: str) -> None:
    """A server is a program or an address, and only a program runs in a sandbox."""
    with pytest.raises(ValueError, match=said):
        McpServer.model_validate(server)


def test_a_tool_that_is_not_there_is_named() -> None:
    """`only` with a wrong name ends the run before its first session."""
    servers = [{"command": TIME, "only": ["get_weather"]}]
    with pytest.raises(InvalidInput, match=r"no tool 'get_weather'; there are \['convert_time'"):
        EnvSpec(id="test/odd", config={"servers": servers}).resolve()  # type: ignore[arg-type]


LINES = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, result = asked["method"], None
    if method == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"],
                  "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "where", "description": "Say where it runs.",
                             "inputSchema": {"type": "object", "properties": {}}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": open("/proc/1/comm").read().strip()}]}
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if result is None:
        answer["error"] = {"code": -32601, "message": "unknown method"}
    else:
        answer["result"] = result
    print(json.dumps(answer), flush=True)
"""


FIRST_PROCESS = Path("/proc/1/comm").read_text().strip()


@register("test/inside")
class Inside(McpEnv):
    """A server that runs in the environment's sandbox, without a network."""

    provider_name = "embedded"
    sandbox_spec: ClassVar[SandboxSpec] = SandboxSpec()
    servers = (McpServer(command=["python3", "-c", LINES], where="sandbox"),)

    def verify(self) -> bool:
        return True


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no namespaces here")
async def test_a_server_in_the_sandbox() -> None:
    """The program runs inside: its first process is the sandbox's, not this machine's."""
    async with Session(EnvSpec(id="test/inside"), TASK) as session:
        assert str(session.status) == "running", session.attempt.cause
        step = await session.step(call("where"))
        assert step.observation[0]["content"] != FIRST_PROCESS
        await session.step("done")
    assert session.outcome is not None


# An environment as a server ---------------------------------------------------------------


def texts(result: Any) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")


async def test_an_environment_is_served_to_the_official_client(tmp_path: Path) -> None:
    """Tools with their schemas; every call a turn of a recorded session, refusals as errors."""
    async with Store(tmp_path) as store:
        service = McpService(EnvSpec(id="test/counter"), [Task(id="a"), Task(id="b")], store=store)
        async with service.opened(), mcp.Client(service.server) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert next(iter(tools)) == "start_task"
            assert "n" in tools["add"].input_schema["properties"]
            early = await client.call_tool("add", {"n": 1})
            assert early.is_error
            assert "start_task" in texts(early)
            assert texts(await client.call_tool("start_task", {})) == "Count to 3."
            assert texts(await client.call_tool("add", {"n": 2})) == "now 2"
            assert (await client.call_tool("refuse", {})).is_error
            ended = await client.call_tool("end_task", {"answer": "two"})
            assert "The attempt has ended" in texts(ended)
            assert "score" not in texts(ended)
            await client.call_tool("start_task", {"task": "b"})
    with Run(tmp_path) as found:
        first, second = found.sessions()
    assert [str(tree.attempts[0].status) for tree in (first, second)] == ["completed", "cancelled"]
    assert [turn.policy for turn in first.turns] == ["mcp:client"] * 3
    assert first.attempts[0].outcome is not None
    assert (first.record.task, second.record.task) == ("a", "b")


async def test_the_command_serves_on_standard_streams(tmp_path: Path) -> None:
    """`trajgym mcp` as a client's configuration names it; pictures arrive as pictures."""
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "run"
    tasks.write_text('{"id": "one"}\n')
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "trajgym", "mcp", "--env", "tests.worlds:Counter", "--tasks", str(tasks),
              "--out", str(out)],
        cwd=str(Path(__file__).parents[2]),
    )  # fmt: skip
    async with mcp.Client(parameters) as client:
        assert texts(await client.call_tool("start_task", {})) == "Count to 3."
        assert texts(await client.call_tool("add", {"n": 3})) == "now 3"
        await client.call_tool("finish", {})
    with Run(out) as found:
        (tree,) = found.sessions()
    assert str(tree.attempts[0].status) == "completed"


async def test_the_command_serves_over_http(tmp_path: Path) -> None:
    """`trajgym mcp --http 0`: the printed URL answers the official client; SIGTERM ends it."""
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "run"
    tasks.write_text('{"id": "one"}\n')
    words = ["--env", "tests.worlds:Counter", "--tasks", str(tasks), "--out", str(out)]
    command = [sys.executable, "-m", "trajgym", "mcp", *words, "--http", "0"]
    root = Path(__file__).parents[2]
    served = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True)
    try:
        assert served.stderr is not None
        line = await asyncio.to_thread(served.stderr.readline)
        found = re.search(r"Serving \S+ at (http://127\.0\.0\.1:\d+/mcp)\.", line)
        assert found is not None, line
        async with mcp.Client(found[1]) as client:
            assert texts(await client.call_tool("start_task", {})) == "Count to 3."
            assert texts(await client.call_tool("add", {"n": 3})) == "now 3"
            await client.call_tool("finish", {})
        served.terminate()
        assert await asyncio.to_thread(served.wait, 60) in {0, 130, -signal.SIGTERM}
    finally:
        served.kill()
        served.communicate()
    with Run(out) as run:
        (tree,) = run.sessions()
    assert str(tree.attempts[0].status) == "completed"


async def test_addresses_that_cannot_be_served_are_refused() -> None:
    """No port that is in use, and nothing that other machines reach without a secret."""
    service = McpService(EnvSpec(id="test/counter"), [Task(id="a")])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"can't listen on 127.0.0.1 port {port}"):
            await service.serve_http(port=port)
        done = subprocess.run(
            [sys.executable, "-m", "trajgym", "serve", "--env", "tests.worlds:Counter",
             "--port", str(port)],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "in use" in done.stderr
        assert "Serving" not in done.stderr
    with pytest.raises(InvalidInput, match="no secret"):
        await service.serve_http(host="0.0.0.0")


async def test_served_environments_are_environments_again(tmp_path: Path) -> None:
    """Both halves together, over HTTP: an environment's tools are those of a served one."""
    import uvicorn

    service = McpService(EnvSpec(id="test/counter"), [Task(id="a")])
    config = uvicorn.Config(service.http_app(), "127.0.0.1", 0, log_level="error")
    server = uvicorn.Server(config)
    async with service.opened():
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        spec = EnvSpec(id="test/odd", config={"servers": [{"url": f"http://127.0.0.1:{port}/mcp"}]})
        await asyncio.to_thread(spec.resolve)
        async with Session(spec, TASK) as session:
            await session.step(call("start_task"))
            step = await session.step(call("add", n=2))
            assert step.observation[0]["content"] == "now 2"
        server.should_exit = True
        await serving


@register("test/greedy")
class Greedy(Counter):
    """Has a tool of a name that the service needs."""

    @tool
    def end_task(self) -> str:
        """End."""
        return ""


async def test_names_that_the_service_uses_are_refused() -> None:
    """A tool that could never be reached is refused before anything is served."""
    with pytest.raises(InvalidInput, match="end_task"):
        McpService(EnvSpec(id="test/greedy"), [Task(id="a")])
    with pytest.raises(InvalidInput, match="at least one task"):
        McpService(EnvSpec(id="test/counter"), [])
