"""Output of commands on terminals of 80 and 200 columns and in a pipe, compared with files.

``TRAJGYM_SNAPSHOTS=write`` rewrites the files in ``tests/snapshots``; look at the difference.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SNAPSHOTS = Path(__file__).parent / "snapshots"
WIDTHS = {"80": 80, "200": 200, "pipe": None}

MODULE = '''
from trajgym.envs import Env, ToolResult, tool
from trajgym.rollout import call


class Pick(Env):
    """The agent picks a number; texts look like markup."""

    @classmethod
    def script(cls, task, sample):
        return [call("pick", n=sample), call("pick", n=2)]

    def reset(self, task, seed):
        if task.id == "broken":
            raise RuntimeError(f"install 'trajgym[local]' and :smile: [red]first[/red] {'x' * 90}")
        self.n = 0
        return "Pick [bold]two[/bold] of trajgym[local], :smile: and a line that is " + "long " * 20

    @tool
    def pick(self, n: int) -> ToolResult:
        """Pick a number."""
        self.n = n
        return ToolResult(content=f"picked {n} [dim]of 2[/dim]", done=n > 1)

    def verify(self):
        return self.n == 2
'''
TASKS = '{"id": "a-task-with-a-long-name"}\n{"id": "b"}\n{"id": "broken"}\n'
COLLECT = (
    "collect --env picks:Pick --tasks tasks.jsonl --samples 2 --out run --policy fake "
    "--concurrency 1"
)
COMMANDS = {
    "envs": "envs",
    "derivers": "derivers",
    "exports": "exports",
    "show": "show run",
    "show-session": "show run SESSION",
    "stats": "stats run",
    "eval": "eval --env picks:Pick --tasks tasks.jsonl --samples 2 --out run --policy fake "
    "--concurrency 1 --keep-failed",
    "failures": COLLECT + " --keep-failed",
    "check": "check run",
}


def printed(folder: Path, words: list[str], width: int | None) -> str:
    """Return what a command prints on a terminal of this width, or in a pipe, errors included."""
    command = [sys.executable, "-m", "trajgym.cli", *words]
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "FORCE_COLOR"}}
    environment |= {"TERM": "xterm", "NO_COLOR": "1", "PYTHONPATH": f"{folder}:{ROOT}"}
    if width is None:
        done = subprocess.run(
            command, cwd=folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        )  # fmt: skip
        return done.stdout
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    parts: list[bytes] = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # Linux: every writer has closed the terminal
        pass
    os.close(ours)
    process.wait(timeout=120)
    return b"".join(parts).decode().replace("\r\n", "\n")


def normalised(text: str) -> str:
    """Replace ids, times and trailing spaces, which differ from run to run."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")
    text = re.sub(r"\b[0-9a-f]{16}(?=-\d)", "0123456789abcdef", text)
    text = re.sub(r"\b\d+\.\d+ s\b", "0.0 s", text)
    text = re.sub(r"(?m)(seconds +|\t|\d  +)\d+\.\d$", r"\g<1>0.0", text)  # seconds of eval
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not re.match(r"collecting \(", line)) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an environment, its tasks and a run of six sessions."""
    folder = tmp_path_factory.mktemp("snapshots")
    (folder / "picks.py").write_text(MODULE)
    (folder / "tasks.jsonl").write_text(TASKS)
    printed(folder, COLLECT.split(), None)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_as_in_the_snapshot(folder: Path, name: str, width: str) -> None:
    """The same text as in the file: nothing cut, eaten or reordered unnoticed."""
    words = COMMANDS[name].split()
    if "SESSION" in words:
        listed = printed(folder, ["show", "run"], None).splitlines()
        words[-1] = next(line for line in listed if "solved" in line).split("\t")[0]
    found = normalised(printed(folder, words, WIDTHS[width]))
    file = SNAPSHOTS / f"{name}.{width}.txt"
    if os.environ.get("TRAJGYM_SNAPSHOTS") == "write":
        file.write_text(found)
    assert found == file.read_text()
