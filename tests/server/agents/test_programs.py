"""Agents from the package index, unmodified, as programs in the sandboxes of SWE tasks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import shape
from tests.server.programs.harness import case
from trajgym.envs import EnvSpec
from trajgym.envs.sandbox import close_shared_providers
from trajgym.envs.swe import SweRecord, load_tasks
from trajgym.envs.swe._sources import base_tree
from trajgym.trajectory import build_rows

pytestmark = pytest.mark.agents
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


async def test_aider_solves_a_task(tmp_path: Path) -> None:
    """It asks for a file, replaces it by the one in the answer, and summarises beside the work."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    record = SweRecord.of(task)
    work = tmp_path / "work"
    subprocess.run(["git", "clone", "-q", base_tree(record).repo, work], check=True, timeout=60)
    patch = record.patch.encode()
    subprocess.run(["git", "apply"], input=patch, cwd=work, check=True, timeout=60)
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
    assert [turn.edge for turn in main] == ["continue", "rewrite"]
    assert all(turn.exact for turn in main)
    assert attempt.leaf == main[-1].index
