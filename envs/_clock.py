"""The agent's clock: counts its seconds, and stands still while others make it wait."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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
        self._scopes: list[_Scope] = []
        self._holds = 0

    @asynccontextmanager
    async def running(self, limit: float | None) -> AsyncIterator[None]:
        """Count the time inside.

        Raises:
            OutOfTime: ``limit`` seconds passed, held time left out; what ran inside was cancelled.
        """
        scope = _Scope(limit)
        self._scopes.append(scope)
        try:
            async with scope.timeout:
                if not self._holds:
                    scope.go()
                yield
        except TimeoutError:
            if scope.timeout.expired():
                raise OutOfTime from None
            raise
        finally:
            self._scopes.remove(scope)
            self.used += scope.stop()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stop the clock inside; holds may nest and overlap."""
        self._holds += 1
        if self._holds == 1:
            for scope in self._scopes:
                scope.stop()
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                for scope in self._scopes:
                    scope.go()

    def give_back(self, seconds: float) -> None:
        """Take seconds off that turned out not to be the agent's."""
        self.used = max(0.0, self.used - seconds)


class _Scope:
    """One running deadline."""

    def __init__(self, limit: float | None) -> None:
        self.timeout = asyncio.timeout(None)
        self._limit = limit
        self._spent = 0.0
        self._since: float | None = None

    def go(self) -> None:
        self._since = time.monotonic()
        if self._limit is not None and not self.timeout.expired():
            left = max(0.0, self._limit - self._spent)
            self.timeout.reschedule(asyncio.get_running_loop().time() + left)

    def stop(self) -> float:
        """Stand still; return the seconds spent so far."""
        if self._since is not None:
            self._spent += time.monotonic() - self._since
            self._since = None
            with suppress(RuntimeError):  # it may have expired or ended
                self.timeout.reschedule(None)
        return self._spent
