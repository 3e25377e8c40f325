"""Agents from the package index, unmodified, as programs in the sandboxes of SWE tasks."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.agents.harness import assert_one_line, installed
from tests.server.harness import shape
from tests.server.programs.harness import case
from trajgym.envs import EnvSpec
from trajgym.envs.sandbox import close_shared_providers
from trajgym.envs.swe import SweRecord, load_tasks
from trajgym.envs.swe._sources import base_tree
from trajgym.trajectory import build_rows

pytestmark = pytest.mark.agents
SHELL_AGENT = Path(__file__).with_name("shell_agent.sh")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(autouse=True)
async def no_provider_stays() -> AsyncIterator[None]:
    """Environments share one provider of each kind; it belongs to the test's event loop."""
    yield
    await close_shared_providers()


KINDS = [pytest.param("docker", marks=pytest.mark.docker), "embedded"]


def packages(name: str) -> str:
    """Return the directory that a package was installed into."""
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parents[1])


@pytest.mark.parametrize("kind", KINDS)
async def test_mini_swe_agent_solves_a_task(tmp_path: Path, kind: str) -> None:
    """It reads the repository, repairs it and submits; its work passes the hidden tests."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    commands = [
        "pwd; ls; python3 -m pytest -q 2>&1 | tail -n 1",
        f"git apply - <<'END'\n{task.data['patch']}END",
        'python3 -c \'import sys; print(sum("/opt/agent" in p for p in sys.path), "paths")\'',
        SUBMIT,
    ]

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        return {"text": "Next.", "calls": [("bash", {"command": commands[n]})]}

    async with case(tmp_path, script) as c:
        spec = EnvSpec(id="swe", config={"sandbox": kind})
        agent = {"agent": "mini-swe-agent", "packages": packages("minisweagent")}
        report = await c.collect(spec, [task], agent)
        tree = c.tree()
        (attempt,) = tree.attempts
        assert report.statuses == {"completed": 1}, f"{attempt.cause}\n{attempt.error}"
        assert len(c.engine.requests) == 4
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert shape(tree) == [(i - 1 if i else None, "continue", "main") for i in range(4)]
    (row,) = build_rows(tree).rows
    assert row.turns == (0, 1, 2, 3)
    first = tree.context(tree.turns[1])[-1]["content"]
    assert "/testbed" in first
    assert "passed" in first
    assert "0 paths" in tree.context(tree.turns[3])[-1]["content"]  # its packages are its own


@pytest.mark.parametrize("kind", KINDS)
async def test_claude_code_solves_a_task(tmp_path: Path, kind: str) -> None:
    """It uses Messages with streams; the recorded turns are exact, and one row."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    repair = f"git apply - <<'END'\n{task.data['patch']}END"

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if "Bash" not in {tool["function"]["name"] for tool in body.get("tools") or ()}:
            return {"text": "a call of another kind"}
        done = sum(message["role"] == "tool" for message in body["messages"])
        if done == 2:
            return {"text": "All done."}
        command = ["pwd; ls", repair][done]
        return {"text": "Next.", "calls": [("Bash", {"command": command, "description": "work"})]}

    async with case(tmp_path, script) as c:
        spec = EnvSpec(id="swe", config={"sandbox": kind})
        agent = {"agent": "claude-code", "packages": packages("claude_agent_sdk")}
        report = await c.collect(spec, [task], agent)
        tree = c.tree()
        (attempt,) = tree.attempts
        assert report.statuses == {"completed": 1}, f"{attempt.cause}\n{attempt.error}"
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert attempt.outcome.details["agent"]["stdout"] == "All done.\n"
    main = [turn for turn in tree.turns if turn.role == "main"]
    assert [turn.edge for turn in main] == ["continue"] * 3
    assert all(turn.exact for turn in main)
    (row,) = build_rows(tree).rows
    assert len(row.turns) == 3


def waited(command: str) -> dict[str, Any]:
    """Return Codex' arguments of a command that it waits for as long as it can."""
    return {"cmd": command, "yield_time_ms": 30_000}


@pytest.mark.parametrize("kind", KINDS)
async def test_codex_solves_a_task(tmp_path: Path, kind: str) -> None:
    """It uses Responses with streams; the recorded turns are exact, and one row."""
    installed("codex", "node_modules/@openai/codex-*/vendor/*/bin/codex")
    (task,) = load_tasks(["trajgym__spans-1.0"])
    repair = f"git apply - <<'END'\n{task.data['patch']}END"

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if n == 2:
            return {"text": "All done."}
        return {"text": "Next.", "calls": [("exec_command", waited(["pwd; ls", repair][n]))]}

    async with case(tmp_path, script) as c:
        spec = EnvSpec(id="swe", config={"sandbox": kind})
        agent = {"agent": "codex", "packages": str(Path(sys.prefix) / "codex")}
        report = await c.collect(spec, [task], agent)
        tree = c.tree()
        (attempt,) = tree.attempts
        assert report.statuses == {"completed": 1}, f"{attempt.cause}\n{attempt.error}"
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert attempt.outcome.details["agent"]["stdout"] == "All done.\n"
    assert "/testbed" in str(tree.context(tree.turns[1])[-1]["content"])
    assert_one_line(tree, 3)


@pytest.mark.parametrize("agent", ["mini-swe-agent", "codex", "script"])
async def test_by_name_on_the_command_line(tmp_path: Path, agent: str) -> None:
    """`trajgym collect --env swe --agent NAME` gives a graded session of the agent's turns."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    repair = f"git apply - <<'END'\n{task.data['patch']}END"
    steps = {
        "mini-swe-agent": [{"calls": [("bash", {"command": x})]} for x in (repair, SUBMIT)],
        "codex": [{"calls": [("exec_command", waited(repair))]}, {"text": "Done."}],
        "script": [{"text": repair}, {"text": "Done."}],
    }
    settings = {
        "mini-swe-agent": {"packages": packages("minisweagent")},
        "codex": {"packages": str(Path(sys.prefix) / "codex")},
        "script": {"script": str(SHELL_AGENT)},
    }

    async with case(tmp_path, lambda n, body: steps[agent][n]) as c:
        words = ["collect", "--env", "swe", "--tasks", "trajgym__spans-1.0", "--out", str(c.out)]
        words += ["--set", "sandbox=embedded", "--samples", "1", "--agent", agent]
        for key, value in settings[agent].items():
            words += ["--agent-set", f"{key}={value}"]
        words += ["--base-url", c.engine.url, "--model", "fake", "--logprobs", "processed"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trajgym.cli",
            *words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 840)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, said.decode()
        tree = c.tree()
    (attempt,) = tree.attempts
    assert str(attempt.status) == "completed", f"{attempt.cause}\n{attempt.error}"
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert attempt.outcome.details["agent"]["name"] == agent
    assert_one_line(tree, 2)


def own_python(name: str) -> dict[str, str]:
    """Return settings of an agent that needs a later Python than the sandbox has."""
    python = Path(installed(name, "bin/python3")).resolve()
    library = installed(name, "lib/python3.*/site-packages")
    return {"packages": library, "python": str(python.parents[1])}


async def test_openhands_solves_a_task(tmp_path: Path) -> None:
    """With a Python of its own: its terminal is in the sandbox, and its turns are one row."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    repair = f"git apply - <<'END'\n{task.data['patch']}END"
    mark = {"summary": "work", "security_risk": "LOW"}
    command = {"command": repair, "timeout": 240, **mark}  # or it goes on after 10 silent seconds
    steps = [("terminal", command), ("finish", {"message": "Done.", **mark})]

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        return {"calls": [steps[n]]}

    async with case(tmp_path, script) as c:
        spec = EnvSpec(id="swe", config={"sandbox": "embedded"})
        report = await c.collect(spec, [task], {"agent": "openhands", **own_python("openhands")})
        tree = c.tree()
        (attempt,) = tree.attempts
        assert report.statuses == {"completed": 1}, f"{attempt.cause}\n{attempt.error}"
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert_one_line(tree, 2)


async def test_terminus_solves_a_task(tmp_path: Path) -> None:
    """With a Python of its own: it types into a tmux in the sandbox, and its turns are one row.

    It reads the screen at a fixed time after each command, so it asks until the answer is there.
    """
    (task,) = load_tasks(["trajgym__spans-1.0"])
    lines = [f"git apply - <<'END'\n{task.data['patch']}END\n", "git status --short\n"]
    changed = " M spans/_set.py"
    read: list[int] = []

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if changed in str(body["messages"][-1]["content"]):
            read.append(n)
        typed = [{"keystrokes": lines[min(n, 1)], "duration": 0.5}]
        step = {"analysis": "a", "plan": "p", "commands": typed, "task_complete": bool(read)}
        return {"text": json.dumps(step)}

    async with case(tmp_path, script) as c:
        spec = EnvSpec(id="swe", config={"sandbox": "embedded"})
        report = await c.collect(spec, [task], {"agent": "terminus-2", **own_python("terminus")})
        tree = c.tree()
        (attempt,) = tree.attempts
        assert report.statuses == {"completed": 1}, f"{attempt.cause}\n{attempt.error}"
        turns = len(c.engine.requests)
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    assert changed in str(tree.context(tree.turns[read[0]])[-1]["content"])
    assert turns == read[0] + 2  # it is asked once more whether it is done
    assert_one_line(tree, turns)


async def test_aider_solves_a_task(tmp_path: Path) -> None:
    """It asks for a file, replaces it by the one in the answer, and summarises beside it."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    record = SweRecord.of(task)
    work = tmp_path / "work"
    subprocess.run(["git", "clone", "-q", base_tree(record).repo, work], check=True, timeout=240)
    patch = record.patch.encode()
    subprocess.run(["git", "apply"], input=patch, cwd=work, check=True, timeout=240)
    whole = (work / "spans" / "_set.py").read_text()

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        if "I added these files" in str(body["messages"][-1]["content"]):
            return {"text": f"The repaired file.\n\nspans/_set.py\n```\n{whole}```\n"}
        if n == 0:
            return {"text": "Please add `spans/_set.py` to the chat."}
        return {"text": "A summary."}

    async with case(tmp_path, script) as c:
        spec = EnvSpec(id="swe", config={"sandbox": "embedded"})
        agent = {"agent": "aider", "packages": str(Path(sys.prefix) / "aider")}
        report = await c.collect(spec, [task], agent)
        tree = c.tree()
        (attempt,) = tree.attempts
        assert report.statuses == {"completed": 1}, f"{attempt.cause}\n{attempt.error}"
    assert attempt.outcome is not None
    assert attempt.outcome.score == 1.0
    main = [turn for turn in tree.turns if turn.agent == "main"]
    beside = [turn for turn in tree.turns if turn.agent != "main"]  # as many as it had time for
    assert {(turn.parent, turn.edge, turn.role) for turn in beside} <= {
        (None, "continue", "side:reader")
    }
    assert {turn.role for turn in main} == {"main"}
    assert [turn.edge for turn in main] == ["continue", "rewrite"]
    assert all(turn.exact for turn in main)
    assert attempt.leaf == main[-1].index
