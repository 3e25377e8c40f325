"""Killing processes inside a sandbox."""

from __future__ import annotations

from trajgym.envs.sandbox import Sandbox

__all__ = ["kill"]


async def kill(sandbox: Sandbox, pattern: str) -> None:
    """Kill the processes inside whose command line matches."""
    line = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q -- \"$0\" && "
    line += 'kill -9 "${p#/proc/}"; done 2>/dev/null; true'
    await sandbox.run(["/bin/sh", "-c", line, pattern])
