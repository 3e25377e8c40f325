"""Sealed groups that the caller of a fleet has not taken yet."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trajgym.rollout.fleet._handling import Handled
    from trajgym.rollout.fleet._jobs import Job

__all__ = ["ReadyGroups"]


class ReadyGroups:
    """Sealed groups that wait to be taken; the one that was begun first comes first.

    Args:
        most: how many may wait before no further groups are run; None for any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._groups: list[tuple[int, Handled]] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def full(self) -> bool:
        """Whether the caller is slower than the processes."""
        return self._most is not None and len(self._groups) >= self._most

    def add(self, job: Job, handled: Handled) -> None:
        """Add the group of a job."""
        heappush(self._groups, (job.number, handled))

    def take(self) -> Handled:
        """Remove and return the first group; there must be one."""
        return heappop(self._groups)[1]
