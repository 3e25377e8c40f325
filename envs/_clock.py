"""The agent's clock: counts its seconds, and stands still while others make it wait."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["AgentClock", "OutOfTime"]


class OutOfTime(Exception):
    """The agent's seconds ran out."""


class AgentClock:
    """Counts the seconds in which the agent samples or its tools run.

    ``with clock.hold():`` stops it, also for a deadline that is running: queueing, engine pauses
    and sandbox starts are not the agent's time.
    """

    def __init__(self) -> None:
        self.used = 0.0
        """Seconds so far."""
        self.scopes: list[_Scope] = []
        """Deadlines that run now; theirs to keep."""
        self._holds = 0

    @property
    def held(self) -> bool:
        """True while the clock stands still."""
        return self._holds > 0

    def running(self, limit: float | None) -> _Scope:
        """Count the time inside ``async with``.

        Raises:
            OutOfTime: ``limit`` seconds passed, held time left out; what ran inside was cancelled.
        """
        return _Scope(self, limit)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stop the clock inside; holds may nest and overlap."""
        self._holds += 1
        if self._holds == 1:
            for scope in self.scopes:
                scope.stop()
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                for scope in self.scopes:
                    scope.go()

    def give_back(self, seconds: float) -> None:
        """Take seconds off that turned out not to be the agent's."""
        self.used = max(0.0, self.used - seconds)


class _Scope:
    """One running deadline."""

    __slots__ = ("_clock", "_limit", "_since", "_spent", "_timeout")

    def __init__(self, clock: AgentClock, limit: float | None) -> None:
        self._clock = clock
        self._timeout = asyncio.timeout(None)
        self._limit = limit
        self._spent = 0.0
        self._since: float | None = None

    async def __aenter__(self) -> None:
        if self._limit is not None:
            await self._timeout.__aenter__()
        self._clock.scopes.append(self)
        if not self._clock.held:
            self.go()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clock.scopes.remove(self)
        self._clock.used += self.stop()
        if self._limit is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise OutOfTime from None

    def go(self) -> None:
        """Count from here."""
        self._since = time.monotonic()
        if self._limit is not None and not self._timeout.expired():
            left = max(0.0, self._limit - self._spent)
            self._timeout.reschedule(asyncio.get_running_loop().time() + left)

    def stop(self) -> float:
        """Stand still; return the seconds spent so far."""
        if self._since is not None:
            self._spent += time.monotonic() - self._since
            self._since = None
            if self._limit is not None and not self._timeout.expired():
                self._timeout.reschedule(None)
        return self._spent
