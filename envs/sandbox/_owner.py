"""Which process a sandbox belongs to, and whether that process still lives."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path

__all__ = ["is_dead", "own_token"]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Clock ticks between boot and the start of a process; None if it does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name of the process, in brackets, may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


@functools.cache
def _place() -> tuple[str, str, str]:
    """This host, its boot and this pid namespace, each as a short word."""
    host = hashlib.sha256(f"{socket.gethostname()}\n{_read('/etc/machine-id')}".encode())
    boot = _read("/proc/sys/kernel/random/boot_id").replace("-", "")
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return host.hexdigest()[:12], boot[:12] or "unknown", namespace


def own_token() -> str:
    """Name this process for labels and file names: host, boot, pid namespace, pid, start time."""
    pid = os.getpid()
    return ".".join((*_place(), str(pid), _start_time(pid) or "0"))


def is_dead(token: str) -> bool:
    """Whether the process of a token is known to live no more.

    False for processes of other hosts and other pid namespaces (an engine may be shared): whoever
    can't be seen is not judged.
    """
    fields = token.split(".")
    if len(fields) != 5 or not fields[3].isdigit():
        return False
    host, boot, namespace, pid, start = fields
    here_host, here_boot, here_namespace = _place()
    if host != here_host:
        return False
    if boot != here_boot:
        return True
    return namespace == here_namespace and _start_time(int(pid)) != start
