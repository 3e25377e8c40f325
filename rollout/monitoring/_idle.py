"""Shares of a run's time in which its parts had nothing to do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.rollout._slots import Slots
    from trajgym.trajectory import Attempt

__all__ = ["Busy", "IdleTimes"]

_IN_ORDER = 4096
"""Most intervals that are kept apart; of more, the earlier half is only a sum."""
_NOT_IN_SANDBOX = ("pause", "place", "policy", "store", "user")
"""What an attempt waits for while its sandbox has nothing to do."""


class Busy:
    """The length of the union of intervals, which are added in any order.

    Memory is bounded: long after it, an interval of the past may count too little.
    """

    def __init__(self) -> None:
        self.until: float | None = None
        """The end of the latest interval."""
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._folded = 0.0
        self._floor = float("-inf")

    def add(self, start: float, end: float) -> None:
        """Add an interval; one that is empty adds nothing."""
        self.until = end if self.until is None else max(end, self.until)
        start = max(start, self._floor)
        if end <= start:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > _IN_ORDER:
            self._fold(_IN_ORDER // 2)

    @property
    def seconds(self) -> float:
        """The length of the union."""
        return self._folded + sum(self._ends) - sum(self._starts)

    def _fold(self, count: int) -> None:
        self._folded += sum(self._ends[:count]) - sum(self._starts[:count])
        self._floor = self._ends[count - 1]
        del self._starts[:count], self._ends[:count]


class IdleTimes:
    """What the idle shares are computed from; those of the last call that collects into the run.

    Args:
        slots: the places for sessions of the call; None if they are not recorded.
    """

    def __init__(self, slots: Slots | None) -> None:
        self.slots = slots
        self._since = None if slots is None else slots.since
        self._calls = Busy()
        self._attempt_seconds = 0.0
        self._waits: dict[str, float] = {}
        self._ended_at = 0.0

    def begin(self, at: float) -> None:
        """Take note of a session that began."""
        if self.slots is None:
            self._since = at if self._since is None else min(at, self._since)

    def call(self, start: float, end: float) -> None:
        """Take note of a policy call."""
        if self.slots is None or end > self.slots.since:
            self._calls.add(start, end)

    def end(self, attempt: Attempt) -> None:
        """Take note of an attempt that ended."""
        at = attempt.ended_at or 0.0
        if self.slots is not None and at < self.slots.since:
            return
        self._ended_at = max(self._ended_at, at)
        self._attempt_seconds += sum(attempt.waits.values()) - attempt.waits.get("place", 0.0)
        for cause, seconds in attempt.waits.items():
            self._waits[cause] = self._waits.get(cause, 0.0) + seconds

    def shares(self, now: float, running: Sequence[float]) -> Mapping[str, float]:
        """Return the idle shares by part; without those that are not known.

        Args:
            now: Unix time (s).
            running: when the sessions in progress began.
        """
        found = {}
        until = now if running else self._ended_at
        slots = self.slots
        if slots is not None and (whole := slots.sessions * (until - slots.since)) > 0:
            open_seconds = sum(max(0.0, now - max(at, slots.since)) for at in running)
            found["slots"] = _share(self._attempt_seconds + open_seconds, whole)
        if self._since is not None and self._calls.until is not None:
            whole = self._calls.until - self._since
            if whole > 0:
                found["engine"] = _share(self._calls.seconds, whole)
        if whole := sum(self._waits.values()):
            idle = sum(self._waits.get(cause, 0.0) for cause in _NOT_IN_SANDBOX)
            found["sandboxes"] = idle / whole
        return found


def _share(busy: float, whole: float) -> float:
    return min(1.0, max(0.0, 1.0 - busy / whole))
