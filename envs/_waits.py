"""What the time of an attempt is spent on."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Waits", "waiting"]


class Waits:
    """Seconds of an attempt by cause; each moment counts for the innermost cause only.

    Sessions count ``policy``, ``environment``, ``verify`` and ``store``; runners ``place`` (waiting
    for one of the sessions at a time) and ``pause``; sandboxes ``sandbox`` (starts and restores).
    Others add causes of their own with :func:`waiting`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """By cause; what still goes on is not counted."""

    def at(self, cause: str) -> _Span:
        """Count the time inside ``with``, apart from causes that are entered within."""
        return _Span(self, cause)


class _Span:
    """One stretch of time; a class, because sessions enter several in each turn."""

    __slots__ = ("begun", "cause", "outer", "token", "waits", "within")

    def __init__(self, waits: Waits, cause: str) -> None:
        self.waits = waits
        self.cause = cause
        self.within = 0.0

    def __enter__(self) -> None:
        self.outer = _current.get()
        self.token = _current.set(self)
        self.begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        took = time.perf_counter() - self.begun
        _current.reset(self.token)
        own = max(0.0, took - self.within)  # concurrent causes may exceed it
        seconds = self.waits.seconds
        seconds[self.cause] = seconds.get(self.cause, 0.0) + own
        outer = self.outer
        if outer is not None and outer.waits is self.waits:
            outer.within += took


_current: ContextVar[_Span | None] = ContextVar("trajgym-waits", default=None)


@contextmanager
def waiting(cause: str) -> Iterator[None]:
    """Count the time inside ``with`` for the session that this code runs for, if there is one.

    ::

        async def verify(self):
            with waiting("judge"):
                return await self.client.grade(self.answer)

    Args:
        cause: a short name; it appears in ``trajgym top`` and as a label of a metric.
    """
    span = _current.get()
    if span is None:
        yield
        return
    with span.waits.at(cause):
        yield
