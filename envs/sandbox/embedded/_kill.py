"""Killing a command of an embedded shell from outside, without the shell. Blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from trajgym.envs.sandbox._protocol import MARK

__all__ = ["find_inner", "kill_marked"]

ROUNDS = 100


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _members(space: str) -> dict[int, dict[str, str]]:
    """Return the status of every process of a pid namespace, by pid on this host."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {pid: _status(pid) for pid in pids if _namespace(pid) == space}


def find_inner(outer: int, inner: int) -> int:
    """Return the pid on this host of process ``inner`` in the namespace of ``outer``; 0 if gone.

    Args:
        outer: a process above the namespace's first one.
        inner: as the namespace counts.
    """
    waiting = [outer]
    while waiting:
        pid = waiting.pop()
        numbers = _status(pid).get("NSpid", "").split()
        if len(numbers) > 1 and numbers[-1] == str(inner):
            return pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            waiting += map(int, children.split())
    return 0


def _mark_of(pid: int) -> str:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    for variable in data.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARK.encode():
            return value.decode(errors="replace")
    return ""


def kill_marked(shell: int, mark: str) -> None:
    """Kill the processes of a command and unmarked orphans, but not the shell.

    Args:
        shell: pid on this host of the shell.
        mark: prefix of the marks of the command's processes; processes without a mark whose
            parent is the namespace's first process count as the command's.
    """
    space = _namespace(shell)
    if not space:
        return
    for _ in range(ROUNDS):
        doomed = []
        for pid, status in _members(space).items():
            if pid == shell or status.get("State", "Z")[0] in "ZX":
                continue
            if status["NSpid"].split()[-1] == "1":
                continue
            own = _mark_of(pid)
            if own.startswith(mark) or (not own and _is_orphan(status)):
                doomed.append(pid)
        for pid in doomed:
            _signal(pid, signal.SIGSTOP)
        for pid in doomed:
            _signal(pid, signal.SIGKILL)
        if not doomed:
            return
        time.sleep(0.005)


def _is_orphan(status: dict[str, str]) -> bool:
    parent = _status(int(status.get("PPid", "0")))
    return parent.get("NSpid", "").split()[-1:] == ["1"]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
