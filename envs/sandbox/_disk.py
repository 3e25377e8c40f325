"""Watching how much a command writes, where nothing else limits it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._errors import SandboxDied, SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["DiskWatch"]

_log = logging.getLogger(__name__)
SECONDS = 0.5
SLACK = 1 << 20


class DiskWatch:
    """Measures a sandbox's files while a command runs; costs nothing for short commands.

    If they exceeded the limit before, the command may still remove some: it is then killed only
    if they grow.

    Args:
        measure: returns the size of the files in bytes.
        kill: ends the command.
        limit: maximum bytes.
        known: what was measured last.
    """

    def __init__(
        self,
        measure: Callable[[], Awaitable[int]],
        kill: Callable[[], Awaitable[None]],
        limit: int,
        known: int,
    ) -> None:
        self.note = ""
        """The message to add to stderr if the command was killed."""
        self._measure = measure
        self._kill = kill
        self._limit = limit
        self._allowed = max(limit, known + SLACK)
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(SECONDS, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        failed = False
        while True:
            begun = time.monotonic()
            try:
                if await self._enforce():
                    return
            except SandboxDied:
                return  # the command itself reports it
            except SandboxError as error:  # the limit applies all the same
                self.note = ""
                level = logging.DEBUG if failed else logging.WARNING
                _log.log(level, "the disk limit can't be enforced, which is tried again: %s", error)
                failed = True
            # Measuring many files must not become the main load.
            await asyncio.sleep(max(SECONDS, 10 * (time.monotonic() - begun)))

    async def _enforce(self) -> bool:
        """Kill the command if the limit is exceeded; return whether that was so."""
        used = await self._measure()
        if used <= self._allowed:
            return False
        self.note = (
            f"\ntrajgym: killed: the sandbox's files take {used} bytes, "
            f"more than its disk limit of {self._limit}\n"
        )
        await self._kill()
        return True

    def stop(self) -> None:
        """Stop watching: the command has ended."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
