"""The table of promises, and helpers of the checks."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.envs.sandbox._base import CommandResult, Sandbox, SandboxProvider, SandboxSpec

__all__ = [
    "PROMISES",
    "SLOW_SECONDS",
    "Case",
    "NotPromised",
    "cut",
    "expect",
    "long_sleep",
    "promise",
    "survivors",
    "unless_admitted",
]

SLOW_SECONDS = 120.0
"""Time limit of what takes a moment, unless a promise is broken: machines may be very slow."""


@dataclass(frozen=True, slots=True)
class Case:
    """One sandbox in which a guarantee is checked, and its provider."""

    provider: SandboxProvider
    spec: SandboxSpec
    sandbox: Sandbox

    async def run(
        self, command: str, *, timeout: float = SLOW_SECONDS, stdin: bytes = b""
    ) -> CommandResult:
        """See :meth:`Sandbox.run`."""
        return await self.sandbox.run(command, timeout=timeout, stdin=stdin)


class NotPromised(Exception):
    """Raised when the provider does not support this here."""


PROMISES: dict[str, Callable[[Case], Awaitable[None]]] = {}
"""Every promise by name, in the order in which they are tried."""


def promise(name: str) -> Callable[[Callable[[Case], Awaitable[None]]], None]:
    def keep(check: Callable[[Case], Awaitable[None]]) -> None:
        PROMISES[name] = check

    return keep


def expect(truth: object, saw: object) -> None:
    if not truth:
        raise AssertionError(f"saw {saw!r}"[:600])


async def cut(run: Callable[..., Awaitable[CommandResult]], command: str) -> CommandResult:
    """Run a command that writes something and never ends, until its time limit.

    The limit is short. On a machine on which the command has not begun by then, it is run again
    with longer ones.
    """
    for seconds in (0.5, 5.0, SLOW_SECONDS):
        async with asyncio.timeout(seconds + SLOW_SECONDS):  # of the kill
            saw = await run(command, timeout=seconds)
        expect(saw.timed_out and saw.exit_code == -1 and not saw.ok, saw)
        if saw.stdout:
            break
    return saw


def unless_admitted(case: Case, aspect: str) -> None:
    answer = case.provider.isolation().get(aspect, "")
    if answer.startswith("NOT"):
        raise NotPromised(f"{aspect}: {answer}")


async def survivors(case: Case, mark: str) -> list[str]:
    """Return command lines that contain the mark, in the sandbox and (if local) on the host."""
    inside = await case.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    found = [text for text in [inside.stdout.decode(errors="replace")] if mark in text]
    return found + await asyncio.to_thread(_on_host, mark)


def _on_host(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


def long_sleep() -> str:
    """Return a number of seconds that identifies a sleep on the host."""
    return str(10**8 + secrets.randbelow(10**8))
