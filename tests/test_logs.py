"""The log as JSON lines: one file for all processes, each line with its session."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs import Env, EnvSpec, ToolResult, register, tool
from trajgym.rollout import ScriptedPolicy, call, collect
from trajgym.rollout.monitoring import log_to
from trajgym.trajectory import InvalidInput, Run, Task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_processes_of_a_fleet_share_the_log(tmp_path: Path) -> None:
    """Each session's begin and end is a line with its id, its status and its time by cause."""
    log, out = tmp_path / "log.jsonl", tmp_path / "run"
    command = [sys.executable, "-m", "trajgym.cli", "--log", str(log), "collect"]
    options = ["--env", "dialogue-rental", "--tasks", "builtin", "--samples", "2"]
    done = subprocess.run(
        [*command, *options, "--processes", "2", "--out", str(out)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = lines(log)
    with Run(out) as run:
        ended = {one.record.id: str(one.attempts[0].status) for one in run.summaries()}
    begun = Counter(one["session"] for one in found if one["message"] == "session begun")
    assert begun == Counter(ended.keys())
    last = {one["session"]: one for one in found if one["message"] == "session ended"}
    assert {name: one["status"] for name, one in last.items()} == ended
    assert all(one["turns"] > 0 and one["waits"]["environment"] > 0 for one in last.values())
    # On a busy machine the first process may have run all of them before the other one was ready.
    assert len({one["process"] for one in last.values()}) in {1, 2}


@register("tests/logging")
class Logging(Env):
    """Logs from a coroutine and from a tool's thread."""

    async def reset(self, task: Task, seed: int | None) -> str:
        logging.getLogger("trajgym.tests").warning("reset of %s", task.id, extra={"part": "env"})
        return "Ring."

    @tool
    def ring(self) -> ToolResult:
        """Ring."""
        try:
            raise ValueError("no bell\nat all")
        except ValueError:
            logging.getLogger("trajgym.tests").exception("ring")
        return ToolResult(content="ding", done=True)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRAJGYM_LOG", "")
    package = logging.getLogger("trajgym")
    level, path = package.level, tmp_path / "log.jsonl"
    handler = log_to(path)
    yield path
    package.removeHandler(handler)
    package.setLevel(level)
    handler.close()


async def test_a_line_names_the_session_that_it_belongs_to(tmp_path: Path, log: Path) -> None:
    """Sessions at the same time don't mix; an exception is one line; outside there is none."""
    tasks = [Task(id="a"), Task(id="b")]
    policy = ScriptedPolicy(lambda request: call("ring"))
    spec = EnvSpec(id="tests/logging")
    await collect(spec, tasks, policy, tmp_path / "run", samples=1, concurrency=2)
    logging.getLogger("trajgym.tests").info("outside")
    logging.getLogger("trajgym.tests").debug("not shown")
    found = lines(log)
    own = {
        one["session"]: [line["message"] for line in found if line.get("session") == one["session"]]
        for one in found
        if "session" in one
    }
    assert sorted(own.values()) == [
        ["session begun", f"reset of {name}", "ring", "session ended"] for name in "ab"
    ]
    errors = [one["error"] for one in found if one["message"] == "ring"]
    assert all("ValueError: no bell\nat all" in error for error in errors)
    assert {one["part"] for one in found if one["message"].startswith("reset")} == {"env"}
    (outside,) = [one for one in found if one["message"] == "outside"]
    assert "session" not in outside
    assert (outside["level"], outside["process"]) == ("info", os.getpid())


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The command ends with one line that names the file, before it does anything."""
    with pytest.raises(InvalidInput, match="the log can't be written to"):
        log_to(tmp_path / "nowhere" / "log")
    command = [sys.executable, "-m", "trajgym.cli", "--log", str(tmp_path), "show", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "the log can't be written to" in done.stderr
    assert "Traceback" not in done.stderr
