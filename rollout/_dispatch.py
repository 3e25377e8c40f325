"""Handing samples to workers, within the limits of the environments."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Generic, TypeVar

from trajgym.rollout._signal import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Dispatcher"]

_Job = TypeVar("_Job")


class Dispatcher(Generic[_Job]):
    """Queues jobs by place; workers take them in order, but those of a place without room.

    Args:
        limits: most jobs of a place that run at the same time, by its name; None for no limit.
    """

    def __init__(self, limits: Mapping[str, int | None]) -> None:
        self._limits = limits
        self._pending: deque[tuple[str, _Job]] = deque()
        self._queued: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._workers: deque[asyncio.Future[tuple[str, _Job] | None]] = deque()
        self._finished = False
        self.changed = Signal()
        """Rung when :attr:`starving` or :attr:`full` may have changed."""

    def add(self, place: str, jobs: Iterable[_Job]) -> None:
        """Queue jobs of a place."""
        for job in jobs:
            self._pending.append((place, job))
            self._queued[place] += 1
        self._hand_out()

    def finish(self) -> None:
        """Let workers end once the queue is empty."""
        self._finished = True
        self._hand_out()

    def clear(self) -> None:
        """Drop what is queued, and let workers end."""
        self._pending.clear()
        self._queued.clear()
        self.finish()

    def remove(self, place: str, job: _Job) -> bool:
        """Drop a job; return whether it was still queued."""
        if (place, job) not in self._pending:
            return False
        self._pending.remove((place, job))
        self._queued[place] -= 1
        self._hand_out()
        return True

    async def next(self) -> tuple[str, _Job] | None:
        """Return the next job and its place, for :meth:`done`; None if there is none any more."""
        future = asyncio.get_running_loop().create_future()
        self._workers.append(future)
        self._hand_out()
        found: tuple[str, _Job] | None = await future
        return found

    def done(self, place: str) -> None:
        """Give back the room of a job that has ended."""
        self._running[place] -= 1
        self._hand_out()

    @property
    def starving(self) -> bool:
        """Whether a worker waits for a job that is not queued yet."""
        return bool(self._workers) and not self._finished

    @property
    def full(self) -> set[str]:
        """Places whose queued and running jobs reach their limit."""
        return {
            place
            for place, limit in self._limits.items()
            if limit is not None and self._queued[place] + self._running[place] >= limit
        }

    def _hand_out(self) -> None:
        while self._workers:
            if self._workers[0].done():  # its worker was cancelled
                self._workers.popleft()
                continue
            job = self._take()
            if job is None and not (self._finished and not self._pending):
                break
            self._workers.popleft().set_result(job)
        self.changed.ring()

    def _take(self) -> tuple[str, _Job] | None:
        for at, (place, job) in enumerate(self._pending):
            limit = self._limits[place]
            if limit is None or self._running[place] < limit:
                del self._pending[at]
                self._queued[place] -= 1
                self._running[place] += 1
                return place, job
        return None
