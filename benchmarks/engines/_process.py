"""Processes of the benchmark: their logs, their messages, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MARK", "Broken", "Process"]

MARK = "@@ "
"""Begins a line of a child that is meant for its parent."""


class Broken(Exception):
    """A variant failed."""


class Process:
    """A process with a log, in a group of its own."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self.process: asyncio.subprocess.Process

    async def start(self, command: list[str], env: dict[str, str], *, piped: bool) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else log,
                stderr=log,
                env={**os.environ, **env},
                start_new_session=True,
                limit=1 << 24,
            )

    async def hear(self) -> dict[str, Any]:
        """Return the child's next message."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            text = line.decode(errors="replace")
            if text.startswith(MARK):
                found: dict[str, Any] = json.loads(text.removeprefix(MARK))
                if "error" in found:
                    raise Broken(found["error"])
                return found
            with self.log.open("a") as log:
                log.write(text)
        raise Broken(f"{self.name} ended with {await self.process.wait()}: {self.tail()}")

    def say(self, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")

    def tail(self, size: int = 3000) -> str:
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""

    async def end(self) -> None:
        if not hasattr(self, "process"):
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        for kind, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, kind)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.process.wait()
        # A process that outlives the group would keep its pipe, and with it the loop's reader.
        self.process._transport.close()  # type: ignore[attr-defined]
