"""Collections that hold real sandboxes, ended at random moments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.kills import ROOT, kill_and_resume

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNER = "trajgym.owner"
"""Label of a container; its fourth field is the pid of the process that started it."""

DOCKER = pytest.param("docker", marks=pytest.mark.docker)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("kind", [DOCKER, "embedded"])
async def test_no_sandbox_outlives_an_ended_run(
    kind: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended three times: turns are kept, sandboxes removed, every sample scored exactly once."""
    monkeypatch.setenv("TRAJGYM_TEST_MARK", "")
    tally = await kill_and_resume(tmp_path, kind, number, kills=3, tasks=4)
    assert tally.kills == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("kind", [DOCKER, "embedded"])
async def test_a_hundred_ends(
    kind: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same a hundred times; ``benchmarks/bench_kills.py`` records what it found."""
    monkeypatch.setenv("TRAJGYM_TEST_MARK", "")
    tally = await kill_and_resume(tmp_path, kind, number, kills=100, tasks=100)
    assert tally.kills == 100


class Command:
    """A ``trajgym`` command in a process of its own, and the containers that it starts.

    Args:
        arguments: of the command.
        ignored: signals that it shall find ignored, as a script's background jobs do.
    """

    def __init__(self, arguments: Sequence[str], ignored: str = "") -> None:
        watched = '{{index .Actor.Attributes "' + OWNER + '"}}'
        watch = ["docker", "events", "--filter", "event=start", "--format", watched]
        watch += ["--since", str(int(time.time()))]
        self._events = subprocess.Popen(watch, stdout=subprocess.PIPE, text=True)
        line = f"trap '' {ignored}; " if ignored else ""
        self.process = subprocess.Popen(
            ["sh", "-c", line + 'exec "$@"', "sh", sys.executable, "-m", "trajgym", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    def wait_for_a_container(self) -> None:
        """Return when the command has started one."""
        assert self._events.stdout is not None
        for owner in self._events.stdout:
            if owner.split(".")[3:4] == [str(self.process.pid)]:
                return
        pytest.fail("docker events ended")

    def containers(self) -> list[str]:
        """Return the containers of this command that are there."""
        listed = ["docker", "ps", "-a", "--format", '{{.Label "' + OWNER + '"}}']
        found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        return [one for one in found.split() if one.split(".")[3] == str(self.process.pid)]

    def end(self, number: signal.Signals) -> str:
        """Send a signal, and return what the command printed once it has exited."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=300)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.kill()
        self._events.communicate()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


HANGS = (
    "diff --git a/spans/_new.py b/spans/_new.py\nnew file mode 100644\n--- /dev/null\n"
    "+++ b/spans/_new.py\n@@ -0,0 +1 @@\n+x = 1\n"
    "diff --git a/spans/__init__.py b/spans/__init__.py\n--- a/spans/__init__.py\n"
    "+++ b/spans/__init__.py\n@@ -0,0 +1 @@\n+import time; time.sleep(3600)\n"
)
"""A change that keeps the tests from ever ending."""


def commands(folder: Path) -> dict[str, list[str]]:
    """Return commands that hold a container until they are ended, by name."""
    predictions, tasks = folder / "predictions.jsonl", folder / "tasks.jsonl"
    line = {"instance_id": "trajgym__spans-1.0", "model_patch": HANGS}
    predictions.write_text(json.dumps(line) + "\n")
    tasks.write_text(json.dumps({"id": "a"}) + "\n")
    grade = f"swe grade --tasks builtin --sandbox docker --test-seconds 3600 --out {folder}/graded"
    box = f"--env tests.boxes:SlowBox --tasks {tasks} --set sandbox=docker --out {folder}/run"
    return {
        "grade": [*grade.split(), "--predictions", str(predictions)],
        "collect": ["collect", *box.split(), "--samples", "2"],
        "eval": ["eval", *box.split()],
    }


@pytest.mark.docker
@pytest.mark.parametrize("name", ["grade", "collect", "eval"])
def test_signals_end_every_command_alike(name: str, tmp_path: Path) -> None:
    """SIGTERM and SIGHUP remove the containers of a command, in the background of a script too."""
    command = commands(tmp_path)[name]
    for number, ignored in ((signal.SIGTERM, ""), (signal.SIGHUP, ""), (signal.SIGTERM, "INT")):
        with Command(command, ignored) as running:
            running.wait_for_a_container()
            said = running.end(number)
            assert running.process.returncode == 130, said
            assert "Traceback" not in said
            assert running.containers() == []


@pytest.mark.docker
@pytest.mark.parametrize("then", ["grade", "collect", "clean"])
def test_the_next_command_removes_what_a_killed_one_left(then: str, tmp_path: Path) -> None:
    """SIGKILL leaves the container; the next command removes it before its own starts."""
    known = commands(tmp_path)
    with Command(known["grade"]) as killed:
        killed.wait_for_a_container()
        killed.end(signal.SIGKILL)
        assert killed.process.returncode == -signal.SIGKILL
        assert len(killed.containers()) == 1
        with Command(known.get(then, ["sandboxes", "clean"])) as later:
            if then == "clean":
                later.process.communicate(timeout=300)
            else:
                later.wait_for_a_container()
            assert killed.containers() == []


@pytest.mark.docker
@pytest.mark.slow
def test_an_ended_demo_leaves_no_container(tmp_path: Path) -> None:
    """The demo is ended while its first container runs."""
    with Command(["demo", "--out", str(tmp_path), "--sandbox", "docker"]) as running:
        running.wait_for_a_container()
        said = running.end(signal.SIGTERM)
        assert running.process.returncode == 130, said
        assert "Traceback" not in said
        assert running.containers() == []
