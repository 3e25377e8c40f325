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

    @contextmanager
    def at(self, cause: str) -> Iterator[None]:
        """Count the time inside ``with``, apart from causes that are entered within."""
        outer = _current.get()
        span = _Span(self)
        token = _current.set(span)
        begun = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - begun
            _current.reset(token)
            own = max(0.0, took - span.within)  # concurrent causes may exceed it
            self.seconds[cause] = self.seconds.get(cause, 0.0) + own
            if outer is not None and outer.waits is self:
                outer.within += took


class _Span:
    __slots__ = ("waits", "within")

    def __init__(self, waits: Waits) -> None:
        self.waits = waits
        self.within = 0.0


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
