"""Environments over HTTP: recorded, truncated, forked and scored like local ones."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clock import Forward
from tests.ports import free_port
from tests.worlds import Snapshots, call
from trajgym.envs import EnvSpec, Session, UnknownEnv
from trajgym.envs.remote import remote_class
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.server import EnvApp, Limits, ServerConfig, running
from trajgym.trajectory import InvalidInput, Run, Task, Turn

TASK = Task(id="t1")
NAMES = ("test/counter", "test/snapshots")


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[tuple[EnvApp, dict[str, EnvSpec]]]:
    """Serve the shared worlds in this loop; gives the application and the remote specs."""
    specs = {name.partition("/")[2]: EnvSpec(id=name) for name in NAMES}
    app = EnvApp(specs, ServerConfig(limits=Limits(**limits)))
    async with running(app) as url:
        remote = {name: EnvSpec(id=f"{url}/envs/{name}") for name in specs}
        for spec in remote.values():  # fetched once, blocking: not in the loop that serves it
            await asyncio.to_thread(spec.resolve)
        yield app, remote


def seen(turn: Turn) -> Any:
    """What has to be equal of a local and a remote turn."""
    calls = [replace(one, seconds=0.0) for one in turn.calls]
    return turn.message, turn.observation, calls, turn.reward, turn.signals, turn.done


STEPS = [
    call(("add", '{"n": 2}'), ("add", "{}")),
    call(("nope", "{}")),
    call(("add", '{"n": "many"}')),
    call(("add", "{")),
    call(("parse", '{"text": "x"}')),
    call(("refuse", "{}")),
    call(("dice", "{}")),
    call(("finish", "{}"), ("add", "{}")),
]


async def test_a_remote_session_is_recorded_as_a_local_one() -> None:
    """Tools, schemas, rewards, refusals, invalid calls, chance, signals and outcome are equal."""
    async with served() as (app, remote):
        trees = []
        for spec in (EnvSpec(id="test/counter"), remote["counter"]):
            async with Session(spec, TASK, session_id="same") as session:
                for message in STEPS:
                    await session.step(message)
            trees.append(session.tree)
        assert app.host.open == 0
    local, far = trees
    assert [seen(turn) for turn in far.turns] == [seen(turn) for turn in local.turns]
    assert far.record.tools == local.record.tools
    assert far.record.budgets == local.record.budgets
    assert far.attempts[0].status == local.attempts[0].status
    assert far.attempts[0].outcome == local.attempts[0].outcome


@pytest.mark.parametrize(
    ("tool", "status"),
    [("bug", "failed:env"), ("lose_sandbox", "failed:sandbox"), ("use_up", "truncated:memory")],
)
async def test_what_breaks_there_breaks_here(tool: str, status: str) -> None:
    """Faults keep their part and cause, truncations their budget; the instance is closed."""
    async with served() as (app, remote):
        async with Session(remote["counter"], TASK) as session:
            await session.step(call((tool, "{}")))
            assert str(session.status) == status
            assert session.attempt.cause
        assert app.host.open == 0


async def test_a_fork_of_a_remote_environment() -> None:
    """A rival is opened from a snapshot there, or by replaying the turns."""
    async with served() as (app, remote):
        for name, every in (("counter", 0), ("snapshots", 1)):
            async with Session(remote[name], TASK, snapshot_every=every) as session:
                await session.step(call(("add", '{"n": 2}')))
                await session.step(call(("add", "{}")))
                rival = await session.fork(0)
                async with rival:
                    result = await rival.step(call(("add", '{"n": 5}')))
                    assert result.observation[0]["content"] == "now 7"
                    assert app.host.open == 2
                taken = {turn.snapshot for turn in session.tree.turns if turn.snapshot}
                assert taken <= set(Snapshots.kept)
            assert len(taken) == 3 * every
            assert not taken & set(Snapshots.kept)
        assert app.host.open == 0


async def test_collect_from_a_remote_environment(tmp_path: Path) -> None:
    """A run over HTTP completes like a local one."""
    async with served() as (app, remote):
        policy = ScriptedPolicy([call(("add", '{"n": 3}')), call(("finish", "{}"))])
        report = await collect(remote["counter"], [TASK], policy, tmp_path, samples=3)
        assert report.statuses == {"completed": 3}
        assert app.host.open == 0
    with Run(tmp_path) as run:
        assert [len(tree.turns) for tree in run.sessions()] == [2, 2, 2]


async def test_a_request_that_is_sent_again_is_not_carried_out_again() -> None:
    """The server answers a repeated request number with its earlier answer."""
    async with served() as (app, remote), aiohttp.ClientSession() as http:
        url = remote["counter"].id
        async with http.post(f"{url}/open", json={"task": {"id": "t"}, "seed": 1}) as got:
            handle = (await got.json())["value"]["id"]
        body = {"number": 1, "tool": "add", "arguments": "{}"}
        answers = []
        for _ in range(2):
            async with http.post(f"{url}/{handle}/call", json=body) as got:
                answers.append(await got.json())
        assert answers[0] == answers[1]
        assert answers[0]["value"]["content"] == "now 1"
        assert app.host.open == 1
    assert app.host.open == 0  # the server closes what its clients left


async def test_limits(forward: Forward) -> None:
    """Environments beyond the limit are refused; an unused one is closed."""
    async with served(environments=1) as (_, remote):
        async with Session(remote["counter"], TASK), Session(remote["counter"], TASK) as second:
            assert str(second.status) == "failed:env"
            assert "503" in second.attempt.cause
    async with served(environment_seconds=300) as (app, remote):
        async with Session(remote["counter"], TASK) as session:
            forward(301)
            async with asyncio.timeout(60):
                while app.host.open:
                    await asyncio.sleep(0.01)
            await session.step(call(("add", "{}")))
            assert str(session.status) == "failed:env"


async def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown names, configuration from the client, and clients without the token."""
    async with served() as (_, remote):
        with pytest.raises(UnknownEnv, match="404"):
            await asyncio.to_thread(remote_class, remote["counter"].id + "s")
        with pytest.raises(InvalidInput, match="configured on its server"):
            EnvSpec(id=remote["counter"].id, config={"target": 5}).make()
    app = EnvApp({"counter": EnvSpec(id="test/counter")}, ServerConfig(secret="s3"))
    async with running(app) as url:
        with pytest.raises(UnknownEnv, match="401"):
            await asyncio.to_thread(remote_class, f"{url}/envs/counter")
        monkeypatch.setenv("TRAJGYM_ENV_TOKEN", "s3")
        spec = EnvSpec(id=f"{url}/envs/counter")
        await asyncio.to_thread(spec.resolve)
        async with Session(spec, TASK) as session:
            await session.step(call(("finish", "{}")))
            assert str(session.status) == "completed"


def test_served_and_collected_by_command(tmp_path: Path) -> None:
    """`trajgym serve --env` in one process, `trajgym collect --env http://...` in another."""
    command = [sys.executable, "-m", "trajgym.cli"]
    port = free_port()
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "run"
    tasks.write_text(json.dumps({"id": "a"}) + "\n")
    given = ["--env", "tests.worlds:Counter", "--set", "target=5", "--port", str(port)]
    server = subprocess.Popen([*command, "serve", *given])
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}/envs/Counter"
        wanted = ["--env", url, "--tasks", str(tasks), "--out", str(out), "--samples", "1"]
        subprocess.run([*command, "collect", *wanted], timeout=240, check=True)
        with Run(out) as run:
            (tree,) = run.sessions()
        assert str(tree.attempts[0].status) == "completed"
        assert tree.turns[0].context == [{"role": "user", "content": "Count to 5."}]
        assert tree.record.env["id"] == url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
