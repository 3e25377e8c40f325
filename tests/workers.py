"""What pytest's workers (``pytest -n``, pytest-xdist) share on a machine, and what they must not.

Without workers, everything here does what it would do for a single one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["made_once", "on_a_host_of_its_own", "sendable"]

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
CLONE_NEWUTS = 0x04000000


def on_a_host_of_its_own() -> None:
    """Give a worker, and the processes that it starts, a host name of their own.

    Providers remove what dead processes of their host left. Tests that kill a process and look at
    what it leaves would otherwise find that another worker's provider has been there first. Needs
    root, as the tests of a private Docker engine do; other users' workers keep the name.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if WORKER and hasattr(libc, "unshare") and libc.unshare(CLONE_NEWUTS) == 0:
        socket.sethostname(f"{socket.gethostname()}-{WORKER}")


def sendable(data: Any) -> Any:
    """Return data with lone surrogates replaced: a worker can't send the output that has them."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {sendable(key): sendable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(map(sendable, data))
    return data


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first worker to ask for it fills; others wait until it is full."""
    base = factory.getbasetemp()
    if WORKER:
        base = base.parent  # that of the whole run
    folder, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
