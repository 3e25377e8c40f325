"""Which process a sandbox belongs to, and whether that process is still running."""

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
    """Return the clock ticks from boot to the start of a process; None if it is not running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name of the process, in brackets, may contain anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


@functools.cache
def _place() -> tuple[str, str, str]:
    """Return identifiers of this host, its boot and this pid namespace."""
    host = hashlib.sha256(f"{socket.gethostname()}\n{_read('/etc/machine-id')}".encode())
    boot = _read("/proc/sys/kernel/random/boot_id").replace("-", "")
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return host.hexdigest()[:12], boot[:12] or "unknown", namespace


def own_token() -> str:
    """Identify this process in labels and file names: host, boot, pid namespace, pid, start."""
    pid = os.getpid()
    return ".".join((*_place(), str(pid), _start_time(pid) or "0"))


def is_dead(token: str) -> bool:
    """Return whether the process of a token is known to have exited.

    False for processes of other hosts and other pid namespaces (an engine may be shared):
    they are not visible from here.
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
