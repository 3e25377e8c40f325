"""Keeping a fleet's processes at work, and replacing those that die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from trajgym.rollout._progress import Progress
from trajgym.rollout.fleet._errors import FleetFailed
from trajgym.rollout.fleet._handling import Handled
from trajgym.rollout.fleet._jobs import what_is_left
from trajgym.rollout.fleet._shard import Shard
from trajgym.rollout.fleet._streamed import ShardWriter
from trajgym.rollout.fleet._worker import FleetWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from trajgym.envs import EnvSpec
    from trajgym.rollout._signal import Signal
    from trajgym.rollout.fleet._child import Recipe
    from trajgym.rollout.fleet._jobs import Job
    from trajgym.rollout.fleet._launcher import Launcher, Room
    from trajgym.rollout.fleet._limits import FleetLimits
    from trajgym.rollout.fleet._queue import JobQueue
    from trajgym.trajectory import Task

__all__ = ["WorkerPool"]

_log = logging.getLogger(__name__)
_LOOK = 1.0
"""Seconds between two looks at the machines: which have room, which are about to leave."""


class WorkerPool:
    """Starts processes, gives them the groups of a queue, and replaces those that die.

    Args:
        launcher: starts the processes.
        recipe: what they make their runners from, all together.
        processes: how many there are.
        environments: the environments of the run.
        known: tasks that are known when a process begins.
        limits: deadlines of the processes.
        queue: the groups.
        changed: rung when a process has ended; waited for where there is no room.
        report: called with each event of the sessions.
    """

    def __init__(
        self,
        launcher: Launcher,
        recipe: Recipe,
        processes: int,
        environments: Sequence[EnvSpec],
        known: Sequence[Task],
        limits: FleetLimits,
        queue: JobQueue,
        changed: Signal,
        report: Callable[[Progress], None],
    ) -> None:
        self.deaths = 0
        """Number of processes that died and were replaced."""
        self.unclosed = 0
        """Number of processes that were killed because they did not close their sessions."""
        self.alive: set[FleetWorker] = set()
        """The processes, from their start until they have ended and been recovered from."""
        self.background: set[asyncio.Task[None]] = set()
        """What goes on beside :meth:`run`: the order to stop, and tidying."""
        self._launcher = launcher
        self._recipe = recipe
        self._processes = processes
        self._environments = environments
        self._known = known
        self._limits = limits
        self._queue = queue
        self._changed = changed
        self._report = report
        self._version = 0
        self._paused = False
        self._opened = False
        """Whether a process has prepared what all share, such as images."""
        self._opening = asyncio.Lock()
        self._false_starts = 0
        self._untidy: set[str] = set()
        """Nodes where a process died since ``open_run``, which removes what it left, was called."""

    # Orders -------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are alive."""
        return [process.pid for process in self.alive if not process.closed.done()]

    async def set_version(self, version: int) -> None:
        """Tell all processes, and those that are started later, the trainer's policy version.

        Like :meth:`pause` and :meth:`resume` it returns when all processes have confirmed it; one
        that does not within ``limits.answer`` seconds is killed and replaced.
        """
        self._version = version
        await self._order("version", version)

    async def pause(self) -> None:
        """Let all processes, and those that are started later, delay new policy calls."""
        self._paused = True
        await self._order("pause")

    async def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._paused = False
        await self._order("resume")

    def stop(self) -> None:
        """Let the processes start no further sessions."""
        self._in_background(self._order("stop"))

    def abandon(self) -> None:
        """Let the processes close their sessions and end, and wait for them. Blocks."""
        alive = list(self.alive)
        for process in alive:
            process.cancel()
        until = time.monotonic() + self._limits.stop
        for process in alive:
            process.join(max(0.0, until - time.monotonic()))

    async def _order(self, name: str, *arguments: Any) -> None:
        alive = list(self.alive)
        await asyncio.gather(*(process.order(name, *arguments) for process in alive))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    # Lives of processes -------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the processes at work until all groups have ended, or the queue is stopped.

        Raises:
            FleetFailed: processes can't be started.
            Exception: what a process has failed with.
        """
        async with asyncio.TaskGroup() as tasks:
            nodes = tasks.create_task(self._watch_nodes())
            slots = [tasks.create_task(self._slot(index)) for index in range(self._processes)]
            await asyncio.wait(slots)
            nodes.cancel()

    async def tidy(self) -> None:
        """Remove what dead processes left that were not replaced."""
        if self.background:
            await asyncio.wait(self.background)
        for node in list(self._untidy):
            await self._tidy(node)

    async def _slot(self, index: int) -> None:
        """Keep one process at work until there is nothing left to do."""
        self._queue.ask()
        while (room := await self._room(index)) is not None:
            try:
                if (job := await self._queue.next(())) is None:
                    return
                await self._life(index, room, job)
            finally:
                self._launcher.release(room)
            self._queue.ask()

    async def _room(self, index: int) -> Room | None:
        """Wait for room for a process; None if there is nothing left to do."""
        sessions = Shard(index, self._processes).part(self._recipe.settings.concurrency)
        since = time.monotonic()
        while not self._queue.stopping and not self._queue.is_over:
            if (room := await self._launcher.reserve(sessions)) is not None:
                return room
            if self.alive:
                since = time.monotonic()
            elif time.monotonic() - since > self._limits.room:
                raise FleetFailed(
                    f"no room for a process within {self._limits.room:g} s: "
                    f"{self._launcher.shortage()}"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._changed.wait()
        return None

    async def _life(self, index: int, room: Room, job: Job) -> None:
        process = await self._started(index, room)
        process.jobs[job.group] = job
        self.alive.add(process)
        try:
            await process.order("version", self._version)
            if self._paused:
                await process.order("pause")
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(process.watch())
                retiring = tasks.create_task(process.retiring.wait())
                feed = tasks.create_task(self._feed(process, job))
                await asyncio.wait([watch, retiring], return_when=asyncio.FIRST_COMPLETED)
                feed.cancel()
                retiring.cancel()
                if not watch.done():
                    process.finish()
        finally:
            self.unclosed += not await process.close()
        failure = process.failure
        # Where others could begin, what failed may work again, such as an engine that was busy.
        if failure is not None and (process.began or not self._opened):
            raise failure.exception
        stopping = self._queue.stopping
        if failure is not None or not process.done or (process.jobs and not stopping):
            await self._recover(process)
        self.alive.discard(process)
        self._changed.ring()

    async def _started(self, index: int, room: Room) -> FleetWorker:
        shard = Shard(index, self._processes)
        writer = None
        if self._launcher.streamed:
            run = self._recipe.run
            writer = await asyncio.to_thread(ShardWriter, shard.store(run), run)
        last_key = None if writer is None else writer.last_key
        try:
            return FleetWorker(
                self._launcher,
                self._recipe.of(shard, room.sessions, last_key),
                room,
                index,
                self._limits,
                writer=writer,
                on_event=self._note,
                on_sealed=self._sealed,
                on_left_open=self._left_open,
            )
        except BaseException:
            if writer is not None:
                writer.close()
            raise

    async def _watch_nodes(self) -> None:
        """Give processes on machines that are about to leave no more tasks."""
        while True:
            leaving = await self._launcher.leaving()
            for process in self.alive:
                if process.room.node in leaving:
                    process.retiring.set()
            await asyncio.sleep(_LOOK)

    async def _feed(self, process: FleetWorker, job: Job) -> None:
        """Open the run in a process and give it tasks."""
        await process.made
        if self._opened:
            process.open(self._known)
            await process.ready
        else:  # the first one prepares what all share, such as images
            async with self._opening:
                process.open(self._known)
                await process.ready
                self._opened = self._opened or process.began
        if not process.began:
            return
        self._false_starts = 0
        self._untidy.discard(process.room.node)
        process.give(job)
        while True:
            await process.wants.acquire()
            self._queue.ask()
            if (next_job := await self._queue.next(process.jobs.values())) is None:
                process.finish()
                return
            process.give(next_job)

    # Deaths -------------------------------------------------------------------------------

    async def _recover(self, process: FleetWorker) -> None:
        """Report what a dead process could not, and queue what it has not finished."""
        self.deaths += 1
        node = process.room.node
        jobs = list(process.jobs.values())
        failure = process.failure
        end = process.end if failure is None else f"could not begin:\n{failure.text}"
        _log.warning("process %d of the fleet %s", process.pid, end)
        if not process.lost:
            self._untidy.add(node)
            if node:  # the next process may well be started elsewhere
                self._in_background(self._tidy(node))
        if not process.began and not process.lost:
            self._false_starts += 1
            if self._false_starts >= self._limits.starts:
                if failure is not None:
                    raise failure.exception
                raise FleetFailed(
                    f"{self._false_starts} processes in a row died before they could run a "
                    f"session; the last one {process.end}",
                )
        for job, events, group in await asyncio.to_thread(
            what_is_left, process.recipe.store, jobs, self._recipe.settings
        ):
            for event in events:
                self._report(event)
            if group is not None and self._recipe.make_handler is None:
                self._sealed(process, Handled(group, None))
            else:
                job.earlier.sealed = False  # sealed again where it is handled
                # If it was not begun, or the machine has left, the group is not the cause.
                guilty = process.began and not process.lost
                self._queue.put_back(job, process.end, guilty=guilty, alone=len(jobs) == 1)
        process.jobs.clear()

    async def _tidy(self, node: str) -> None:
        """Remove what processes left on a node."""
        try:
            async with asyncio.timeout(self._limits.open):
                await self._launcher.tidy(node, self._environments)
        except Exception:  # boundary: environments and Ray; raised again for this machine
            if not node:
                raise
            _log.exception("what a dead process left on node %s may still be there", node)
        else:
            self._untidy.discard(node)

    # Reports of processes -----------------------------------------------------------------

    def _note(self, process: FleetWorker, event: Progress) -> None:
        job = process.jobs.get(event.session.partition("-")[0])
        if job is not None:
            job.note(event)
        self._report(event)

    def _sealed(self, process: FleetWorker, handled: Handled) -> None:
        job = process.jobs.pop(handled.group.id, None)
        if job is not None:
            self._queue.seal(job, handled)
            self._report(Progress("sealed", "", handled.group.task))

    def _left_open(self, process: FleetWorker, group: str) -> None:
        job = process.jobs.pop(group, None)
        if job is not None:
            self._queue.give_up(
                job,
                f"task {job.task.id!r} has sessions that were cancelled by code that they run",
            )
