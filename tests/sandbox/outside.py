"""Ending a sandbox from outside, as another program, a person or the kernel of the host can."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from trajgym.envs.sandbox import Sandbox

__all__ = ["end_from_outside"]


def end_from_outside(box: Sandbox) -> None:
    """Remove a container, or kill what runs of an embedded sandbox of this process."""
    container = getattr(box, "container", None)
    if container is not None:
        subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)
        return
    found = [pid for pid in _children(os.getpid()) if box.id.encode() in _command(pid)]
    assert found, f"nothing runs of {box.id}"
    for pid in found:  # each before those inside, which would end with it a moment later
        found += _children(pid)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
