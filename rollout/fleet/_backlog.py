"""Groups that wait for a process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.rollout.fleet._jobs import Job

__all__ = ["Backlog"]


class Backlog:
    """Groups that wait for a process.

    First come those whose process died. A group that has lost two processes may be what ends them:
    it comes last, and runs alone in its process.
    """

    def __init__(self) -> None:
        self._fresh: deque[Job] = deque()
        self._again: deque[Job] = deque()
        self._suspects: deque[Job] = deque()

    def __bool__(self) -> bool:
        return bool(self._fresh or self._again or self._suspects)

    def add(self, job: Job) -> None:
        """Queue a group that was not begun."""
        self._fresh.append(job)

    def put_back(self, job: Job) -> None:
        """Queue a group whose process has ended."""
        (self._suspects if job.deaths > 1 else self._again).append(job)

    def take(self, running: Collection[Job], *, complete: bool) -> Job | None:
        """Return the next group for a process; None if there is none for it now.

        Args:
            running: what the process works on.
            complete: whether no further groups will be added.
        """
        if any(job.deaths > 1 for job in running):
            return None
        if self._again:
            return self._again.popleft()
        if self._fresh:
            return self._fresh.popleft()
        if self._suspects and complete and not running:
            return self._suspects.popleft()
        return None
