"""Pause state and policy version during weight updates, shared by all calls."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

from trajgym.server._errors import Refused
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Control", "PauseMode"]

PauseMode: TypeAlias = Literal["keep", "abort", "wait"]
"""What the engine does with running calls: freeze them, abort them, or finish them first."""


class Control:
    """Pause, resume and policy version.

    While paused, new calls wait in the proxy instead of at the engine. An engine that rejects calls
    during a pause, or that is restarted, therefore causes no client errors.

    Args:
        version: initial policy version.
        keep: called with every new version to persist it, and awaited.
    """

    def __init__(
        self, version: int = 0, keep: Callable[[int], Awaitable[object]] | None = None
    ) -> None:
        self.version = version
        self.mode: PauseMode = "keep"
        self.pauses = 0
        """Number of pauses so far; a call that sees it change was running during one."""
        self.aborts = 0
        """Number of pauses that abort running calls."""
        self.held = 0
        """Number of calls that are waiting."""
        self._keep = keep
        self._running = asyncio.Event()
        self._running.set()

    @property
    def paused(self) -> bool:
        """True between :meth:`pause` and :meth:`resume`."""
        return not self._running.is_set()

    def pause(self, mode: PauseMode = "keep") -> None:
        """Make new calls wait. Idempotent."""
        if self.paused:
            return
        self.mode = mode
        self.pauses += 1
        self.aborts += mode == "abort"
        self._running.clear()

    def resume(self) -> None:
        """Let waiting and new calls proceed. Idempotent."""
        self._running.set()

    async def set_version(self, version: int) -> None:
        """Set the engine's policy version; durable on return.

        Raises:
            InvalidInput: the version is lower than the last one.
        """
        if version < self.version:
            raise InvalidInput(f"version {version} is lower than the current {self.version}")
        self.version = version
        if self._keep is not None:
            await self._keep(version)

    async def admit(self, seconds: float) -> float:
        """Wait until the engine is not paused; return the seconds waited.

        Raises:
            Refused: 503 with ``Retry-After``, after ``seconds``: clients retry a 503, while their
                own read timeout could end the run.
        """
        if self._running.is_set():
            return 0.0
        begun = time.monotonic()
        self.held += 1
        try:
            async with asyncio.timeout(seconds):
                await self._running.wait()
        except TimeoutError as error:
            raise Refused(
                503,
                f"the engine has been paused for a weight update for {seconds:g} s; try again",
                kind="overloaded_error",
                retry_after=1.0,
            ) from error
        finally:
            self.held -= 1
        return time.monotonic() - begun
