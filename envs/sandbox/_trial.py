"""What the promises of a sandbox are tried with."""

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
    "NotPromised",
    "Trial",
    "expect",
    "long_sleep",
    "promise",
    "survivors",
    "unless_admitted",
]


@dataclass(frozen=True, slots=True)
class Trial:
    provider: SandboxProvider
    spec: SandboxSpec
    sandbox: Sandbox

    async def run(
        self, command: str, *, timeout: float = 30.0, stdin: bytes = b""
    ) -> CommandResult:
        return await self.sandbox.run(command, timeout=timeout, stdin=stdin)


class NotPromised(Exception):
    """The provider itself says that it does not do this here."""


PROMISES: dict[str, Callable[[Trial], Awaitable[None]]] = {}
"""Every promise by name, in the order in which they are tried."""


def promise(name: str) -> Callable[[Callable[[Trial], Awaitable[None]]], None]:
    def keep(check: Callable[[Trial], Awaitable[None]]) -> None:
        PROMISES[name] = check

    return keep


def expect(truth: object, saw: object) -> None:
    if not truth:
        raise AssertionError(f"saw {saw!r}"[:600])


def unless_admitted(trial: Trial, aspect: str) -> None:
    said = trial.provider.isolation().get(aspect, "")
    if said.startswith("NOT"):
        raise NotPromised(f"{aspect}: {said}")


async def survivors(trial: Trial, mark: str) -> list[str]:
    """Command lines that hold the mark, seen in the sandbox and (if local) on the host."""
    inside = await trial.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
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
    """Seconds of a sleep that no other program on the host sleeps."""
    return str(10**8 + secrets.randbelow(10**8))
