"""The agent's clock, which is stopped while the agent has to wait for something else."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["AgentClock", "OutOfTime", "SharedClock", "off_the_clock"]


class OutOfTime(Exception):
    """The agent's seconds ran out."""


class AgentClock:
    """Counts the seconds during which the agent samples or its tools run.

    ``with clock.hold():`` stops it, and also suspends running deadlines: queueing, engine pauses
    and sandbox starts are not the agent's time.
    """

    def __init__(self) -> None:
        self.used = 0.0
        """Seconds so far."""
        self.scopes: list[_Scope] = []
        """The running deadlines, which add and remove themselves."""
        self._holds = 0

    @property
    def held(self) -> bool:
        """True while the clock is stopped."""
        return self._holds > 0

    @property
    def running_now(self) -> bool:
        """True inside :meth:`running`, even while the clock is held."""
        return bool(self.scopes)

    def running(self, limit: float | None) -> _Scope:
        """Count the time inside ``async with``.

        Raises:
            OutOfTime: ``limit`` seconds passed, without held time; the body was cancelled.
        """
        return _Scope(self, limit)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Stop the clock inside ``with``; holds may nest and overlap."""
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

    def charge(self, seconds: float) -> None:
        """Add seconds that were counted elsewhere."""
        self.used += seconds

    def give_back(self, seconds: float) -> None:
        """Subtract seconds that turned out not to be the agent's."""
        self.used = max(0.0, self.used - seconds)


_running: ContextVar[tuple[AgentClock, asyncio.AbstractEventLoop] | None] = ContextVar(
    "trajgym_agent_clock", default=None
)
"""The clock of the code that is running, and the event loop of its deadlines."""


@contextmanager
def off_the_clock() -> Iterator[bool]:
    """Hold the clock of the session that this code runs for, if there is one.

    For code without access to the session that waits for something outside the agent's control,
    such as a client whose request was refused with a ``Retry-After``.

    Yields:
        Whether a clock is held.
    """
    found = _running.get()
    if found is None or found[1] is not asyncio.get_running_loop() or not found[0].running_now:
        yield False
        return
    with found[0].hold():
        yield True


class SharedClock(AgentClock):
    """Holds the clocks of all sessions that wait for a shared operation.

    The operation runs inside :meth:`serving`; each session waits inside :meth:`waiting`. While the
    operation holds the clock, it is held for every waiting session.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[ExitStack, AgentClock] = {}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Make :func:`off_the_clock` hold the clocks of the waiting sessions inside ``with``."""
        token = _running.set((self, asyncio.get_running_loop()))
        try:
            yield
        finally:
            _running.reset(token)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Register the clock of the session that this code runs for, if there is one."""
        found = _running.get()
        if found is None or not found[0].running_now:
            yield
            return
        with ExitStack() as held:
            self._waiting[held] = found[0]
            try:
                if self.held:
                    held.enter_context(found[0].hold())
                yield
            finally:
                del self._waiting[held]

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the clocks of all sessions that are waiting, or begin to wait inside ``with``."""
        self._holds += 1
        if self._holds == 1:
            for held, clock in self._waiting.items():
                held.enter_context(clock.hold())
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                for held in self._waiting:
                    held.close()

    @property
    def running_now(self) -> bool:
        """True while a session waits."""
        return bool(self._waiting)


class _Scope:
    """One running deadline."""

    __slots__ = ("_clock", "_limit", "_since", "_spent", "_timeout", "_token")

    def __init__(self, clock: AgentClock, limit: float | None) -> None:
        self._clock = clock
        self._timeout = None if limit is None else asyncio.timeout(None)
        self._limit = limit
        self._spent = 0.0
        self._since: float | None = None

    async def __aenter__(self) -> None:
        if self._timeout is not None:
            await self._timeout.__aenter__()
        self._clock.scopes.append(self)
        self._token = _running.set((self._clock, asyncio.get_running_loop()))
        if not self._clock.held:
            self.go()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clock.scopes.remove(self)
        _running.reset(self._token)
        self._clock.used += self.stop()
        if self._timeout is None:
            return
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise OutOfTime from None

    def go(self) -> None:
        """Start or resume counting."""
        self._since = time.monotonic()
        if self._limit is not None and self._timeout is not None and not self._timeout.expired():
            left = max(0.0, self._limit - self._spent)
            self._timeout.reschedule(asyncio.get_running_loop().time() + left)

    def stop(self) -> float:
        """Stop counting; return the seconds spent so far."""
        if self._since is not None:
            self._spent += time.monotonic() - self._since
            self._since = None
            if self._timeout is not None and not self._timeout.expired():
                self._timeout.reschedule(None)
        return self._spent
