"""The groups of a fleet's run, from the reading of their tasks to their ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from trajgym.rollout._supervisor import RunIncomplete
from trajgym.rollout.fleet._backlog import Backlog
from trajgym.rollout.fleet._jobs import Job

if TYPE_CHECKING:
    from collections.abc import Collection

    from trajgym.rollout._progress import Progress
    from trajgym.rollout._signal import Signal
    from trajgym.rollout._source import GroupSource
    from trajgym.rollout.fleet._handling import Handled
    from trajgym.rollout.fleet._ready import ReadyGroups
    from trajgym.trajectory import Store

__all__ = ["JobQueue"]

_log = logging.getLogger(__name__)


class JobQueue:
    """Reads tasks when processes ask for them, and knows which groups have not ended.

    Args:
        source: where the groups come from.
        ready: groups that have been sealed.
        changed: rung when something changes that :meth:`next` or the caller may wait for.
        most_deaths: after so many deaths of a process that ran nothing but one group, that group is
            left unfinished.
    """

    def __init__(
        self, source: GroupSource, ready: ReadyGroups, changed: Signal, most_deaths: int
    ) -> None:
        self.version = 0
        """The trainer's policy version, which decides how many groups may be begun."""
        self.stopping = False
        """Whether no further groups are given to processes."""
        self._source = source
        self._ready = ready
        self._changed = changed
        self._most_deaths = most_deaths
        self._backlog = Backlog()
        self._open: dict[str, Job] = {}
        """Groups that were begun and have not ended."""
        self._unfinished: dict[str, str] = {}
        """Why groups have ended without being sealed."""
        self._exhausted = False
        """Whether there are no more tasks to read."""
        self._demand = asyncio.Semaphore(0)

    # Reading ------------------------------------------------------------------------------

    def ask(self) -> None:
        """Let one more task be read: a process has room for it."""
        self._demand.release()

    async def read(self, store: Store) -> None:
        """Read tasks as they are needed, and skip those whose groups are finished.

        Args:
            store: the fleet's file, where tasks are recorded.
        """
        source = self._source
        while not self.stopping:
            await self._demand.acquire()
            while not source.can_read(self.version, self._full()):
                await self._changed.wait()
            while (job := await self._read_one()) is not None and self._is_finished(job):
                pass
            if job is None:
                break
            while not source.capacity.admits(self.version):
                await self._changed.wait()
            job.number = source.begin()
            self._open[job.group] = job
            await store.put_task(job.task)
            await source.record(store)
            self._backlog.add(job)
            self._changed.ring()
        self._exhausted = True
        self._changed.ring()

    async def _read_one(self) -> Job | None:
        task = await self._source.read(self._full())
        return None if task is None else Job(task, *self._source.group_of(task))

    def _is_finished(self, job: Job) -> bool:
        settings = self._source.places.of(job.task).settings
        return job.earlier.sealed and not job.earlier.lacking(settings)

    def _full(self) -> set[str]:
        """Return the parts whose sessions in progress or queued reach their limit."""
        places = self._source.places
        limits = {n: one.limit for n, one in places.all.items() if one.limit is not None}
        if not limits:
            return set()
        sessions: Counter[str] = Counter()
        for job in self._open.values():
            place = places.of(job.task)
            sessions[place.name] += max(1, place.settings.samples - len(job.ended))
        return {name for name, limit in limits.items() if sessions[name] >= limit}

    # Giving groups to processes ------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether all groups have ended and there are no more tasks."""
        return self._exhausted and not self._open

    async def next(self, running: Collection[Job]) -> Job | None:
        """Return a group for a process; None if there are no more.

        Args:
            running: what the process works on; changes while this waits.
        """
        while not self.stopping:
            # If the caller is slower than the processes, these wait.
            if not self._ready.full and (
                job := self._backlog.take(running, complete=self._exhausted)
            ):
                return job
            if self.is_over:
                break
            await self._changed.wait()
        return None

    def note(self, event: Progress) -> None:
        """Count a session that has ended; other events are ignored."""
        self._source.note(event)
        if self._source.draws is not None and event.kind == "ended":
            self._changed.ring()

    # Ends ---------------------------------------------------------------------------------

    def seal(self, job: Job, handled: Handled) -> None:
        """End a group that was sealed."""
        self._end(job, accepted=bool(handled.group.counted))
        self._ready.add(job, handled)
        self._changed.ring()

    def give_up(self, job: Job, why: str) -> None:
        """End a group that can't be sealed."""
        self._unfinished[job.group] = why
        self._end(job, accepted=False)
        self._changed.ring()

    def put_back(self, job: Job, end: str, *, guilty: bool, alone: bool) -> None:
        """Queue a group whose process has ended, unless it has ended too many of them.

        Args:
            job: the group.
            end: how the process ended, in words.
            guilty: whether the group may be the cause.
            alone: whether the process worked on nothing else.
        """
        if guilty:
            job.deaths += 1
            job.alone += alone
        if job.alone >= self._most_deaths:
            self.give_up(
                job, f"task {job.task.id!r} ended its process {job.deaths} times (it {end})"
            )
            return
        if job.deaths == 2:  # at the latest now: with endless tasks, its turn never comes
            _log.warning(
                "task %r was running in two processes that ended; its group runs again alone, "
                "after all other tasks",
                job.task.id,
            )
        self._backlog.put_back(job)

    def check(self) -> None:
        """Look whether all groups were sealed, once nothing runs any more.

        Raises:
            RunIncomplete: some were not, and :attr:`stopping` is not set.
        """
        if self._unfinished and not self.stopping:
            lines = "; ".join(sorted(self._unfinished.values())[:5])
            raise RunIncomplete(
                f"{len(self._unfinished)} groups are not finished: {lines}; collect again to run "
                "what they lack",
            )

    def _end(self, job: Job, *, accepted: bool) -> None:
        if self._open.pop(job.group, None) is not None:
            self._source.end(job.group, accepted=accepted)
            self._changed.ring()
