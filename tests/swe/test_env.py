"""The SWE environment in sessions."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs import EnvSpec, Session, ToolError
from trajgym.envs.sandbox import shared_provider
from trajgym.envs.swe import BashSweEnv, SweEnv, demo_agent, load_tasks
from trajgym.envs.swe._layout import REPO
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.clock import Forward
    from trajgym.trajectory import Message, Task

KINDS = [pytest.param("docker", marks=pytest.mark.docker), "embedded"]


@asynccontextmanager
async def opened(task: Task, kind: str = "embedded", **config: Any) -> AsyncIterator[SweEnv]:
    env = SweEnv(sandbox=kind, **config)
    try:
        await env.reset(task, None)
        yield env
    finally:
        await env.close()


async def run(session: Session, messages: list[Message]) -> None:
    async with session:
        for message in messages:
            if not session.done:
                await session.step(message)


@pytest.mark.parametrize("kind", KINDS)
async def test_scripted_group_has_mixed_outcomes(kind: str, spans: Task) -> None:
    """The demo's six styles go through real sessions: right ones solve, wrong ones do not."""
    scores = []
    for sample in range(6):
        session = Session(EnvSpec(id="swe", config={"sandbox": kind}), spans, sample=sample)
        await run(session, SweEnv.script(spans, sample))
        assert str(session.status) == "completed", session.attempt
        assert session.outcome is not None
        scores.append(session.outcome.score)
    assert scores == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]


async def test_slips_are_recorded_as_invalid_calls(spans: Task) -> None:
    """Unknown tools and malformed arguments get error results, and the session can still solve."""
    session = Session(EnvSpec(id="swe", config={"sandbox": "embedded"}), spans)
    await run(session, demo_agent(spans, 2))
    statuses = [call.status for turn in session.turns for call in turn.calls]
    assert statuses.count("invalid") == 3
    assert session.outcome is not None
    assert session.outcome.passed


async def test_prompt_has_the_problem_and_not_the_solution(spans: Task) -> None:
    """The agent reads the problem statement; nothing of gold patch or hidden tests is near it."""
    env = SweEnv(sandbox="embedded")
    try:
        prompt = await env.reset(spans, None)
        assert "Spans that touch are not joined" in prompt
        assert "test_edges" not in prompt
        places = "/testbed /opt/trajgym /tmp /home /work /var /mnt /srv"
        found = await env.bash(f"grep -rls -e test_edges -e FAIL_TO_PASS {places}; true")
        assert found.content == "[exit status 0]"
    finally:
        await env.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_repository_has_one_commit_and_no_network(kind: str, spans: Task) -> None:
    """The history has no later commits with the fix, and the network can't be reached."""
    async with opened(spans, kind) as env:
        count = await env.bash("git rev-list --all | wc -l; git status --short; git stash list")
        assert count.content == "1\n[exit status 0]"
        out = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
        assert "unreachable" in str((await env.bash(f'python3 -c "{out}"')).content)


@pytest.mark.parametrize("kind", KINDS)
async def test_tests_run_with_both_names(kind: str, spans: Task) -> None:
    """`pytest` and `python -m pytest` both work offline, and their results are signals."""
    async with opened(spans, kind) as env:
        for command in ("pytest -q", "python -m pytest -q"):
            done = await env.bash(command)
            assert "25 passed\n" in str(done.content)
            assert done.signals["tests_passed"] == 25
            assert done.signals["tests_ok"]


async def test_commands_are_bounded(spans: Task, forward: Forward) -> None:
    """A command that never ends is killed, long output is cut in the middle, bad bytes replaced."""
    async with opened(spans, command_seconds=300.0) as env:
        running = asyncio.create_task(env.bash("echo begun; touch begun; sleep 600", timeout=500))
        while not (await env.sandbox.run(f"test -e {REPO}/begun")).ok:
            pass
        forward(300.0)
        endless = await running
        assert endless.content == "begun\n[killed: it was still running after 300 s]"
        assert endless.signals["timed_out"]
    async with opened(spans, output_bytes=1000) as env:
        flood = str((await env.bash("seq 100000; printf '\\377'")).content)
        assert len(flood) < 1200
        assert flood.startswith("1\n2\n")
        assert "bytes left out ...]" in flood
        assert "100000\n\ufffd" in flood
        with pytest.raises(ToolError, match="positive"):
            await env.bash("true", timeout=0)


async def test_standard_error_comes_in_order(spans: Task) -> None:
    """Both streams are shown as one, as in a terminal."""
    async with opened(spans) as env:
        done = await env.bash("echo one; echo two >&2; echo three; (exit 3)")
        assert done.content == "one\ntwo\nthree\n[exit status 3]"


async def test_view_shows_numbered_lines_and_folders(spans: Task) -> None:
    """Files show with line numbers, folders as lists, what is not there as an error."""
    async with opened(spans) as env:
        lines = await env.view("README.md", 1, 1)
        assert lines.content == "     1\t# spans"
        folder = str((await env.view(".")).content)
        assert {"spans/", "tests/", "README.md"} <= set(folder.split())
        with pytest.raises(ToolError, match=r"missing\.py can't be read"):
            await env.view("missing.py")
        with pytest.raises(ToolError, match="is not a range"):
            await env.view("README.md", 90, 99)


async def test_edits_change_files_and_are_counted(spans: Task) -> None:
    """Replace, insert and create edit files, keep modes, and report the files edited so far."""
    async with opened(spans) as env:
        await env.bash("chmod 755 README.md")
        replaced = await env.str_replace("README.md", "# spans", "# Spans")
        assert replaced.content == "replaced at line 1 of README.md"
        await env.insert("README.md", 1, "added")
        created = await env.create("new/deep/file.py", "x = 1\n")
        assert created.signals["files_edited_so_far"] == ["README.md", "new/deep/file.py"]
        shown = await env.bash("head -n 2 README.md; stat -c %a README.md; cat new/deep/file.py")
        assert shown.content == "# Spans\nadded\n755\nx = 1\n[exit status 0]"
        with pytest.raises(ToolError, match="exists already"):
            await env.create("README.md", "")
        with pytest.raises(ToolError, match="does not occur"):
            await env.str_replace("README.md", "no such text", "x")
        with pytest.raises(ToolError, match="can't be written"):
            await env.create("/etc/made", "x")


async def test_snapshot_brings_files_back(spans: Task) -> None:
    """A restored environment has the files of that moment and grades them."""
    async with opened(spans) as env:
        await env.create("kept.txt", "kept")
        snapshot = await env.snapshot()
        await env.create("later.txt", "later")
        other = SweEnv(sandbox="embedded")
        try:
            await other.restore(spans, None, snapshot)
            assert (await other.bash("ls *.txt")).content == "kept.txt\n[exit status 0]"
            assert (await other.verify()).score == 0.0
        finally:
            await other.close()


async def test_bash_only_variant(spans: Task) -> None:
    """A task can be solved with the shell alone, and half of a solution does not solve it."""
    spec = EnvSpec(id="trajgym.envs.swe:BashSweEnv", config={"sandbox": "embedded"})
    scores = []
    for sample in (0, 1):
        session = Session(spec, spans)
        assert [tool["function"]["name"] for tool in session.tools] == ["bash", "submit"]
        await run(session, BashSweEnv.script(spans, sample))
        assert {call.status for turn in session.turns for call in turn.calls} == {"ok"}
        scores.append(session.outcome and session.outcome.score)
    assert scores == [1.0, 0.0]


async def test_last_run_closes_the_shared_sandboxes() -> None:
    """Runs of one process share a provider, and the last to end closes it."""
    config = {"sandbox": "embedded"}
    await SweEnv.open_run(config)
    await BashSweEnv.open_run(config)
    first = await shared_provider("embedded")
    await SweEnv.close_run(config)
    assert await shared_provider("embedded") is first
    await BashSweEnv.close_run(config)
    assert await shared_provider("embedded") is not first


def test_bad_configuration_is_refused() -> None:
    """Invalid settings are refused when the environment is constructed."""
    with pytest.raises(InvalidInput, match="positive"):
        BashSweEnv(command_seconds=0)
    with pytest.raises(InvalidInput, match="'podman': use one of"):
        SweEnv(sandbox="podman")  # type: ignore[arg-type]


@pytest.mark.parametrize("sample", range(6))
def test_scripts_are_chat_messages(sample: int) -> None:
    """Every style gives assistant messages with unique call ids, submit being the last call."""
    (task,) = load_tasks(["trajgym__fieldtext-1.0"])
    messages = demo_agent(task, sample)
    calls = [call for message in messages for call in message["tool_calls"]]
    assert len({call["id"] for call in calls}) == len(calls)
    assert calls[-1]["function"]["name"] == "submit"
