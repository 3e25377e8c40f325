"""Runners in processes, here or elsewhere, that share tasks and a run and survive deaths."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from trajgym.envs.faults import contained, stoppable
from trajgym.rollout._fingerprint import KnownTasks, claim_run
from trajgym.rollout._places import Places
from trajgym.rollout._policy import AttemptPolicy
from trajgym.rollout._resume import Earlier, earlier_groups, without_writers
from trajgym.rollout._runner import (
    Progress,
    RunIncomplete,
    SealedGroup,
    as_async,
    as_delivered,
    draws_of,
)
from trajgym.rollout._sample import group_id
from trajgym.rollout._settings import RunSettings
from trajgym.rollout._signal import Signal
from trajgym.rollout.fleet._backlog import Backlog
from trajgym.rollout.fleet._child import Recipe
from trajgym.rollout.fleet._errors import FleetFailed
from trajgym.rollout.fleet._handling import Handled
from trajgym.rollout.fleet._jobs import Job, what_is_left
from trajgym.rollout.fleet._launcher import ProcessLauncher
from trajgym.rollout.fleet._limits import FleetLimits
from trajgym.rollout.fleet._shard import Shard
from trajgym.rollout.fleet._streamed import ShardWriter
from trajgym.rollout.fleet._worker import FleetWorker
from trajgym.rollout.rules import Capacity
from trajgym.trajectory import InvalidInput, Store
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
    from types import TracebackType
    from typing import Any

    from trajgym.envs import EnvSpec
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._settings import RunKeywords
    from trajgym.rollout.fleet._handling import GroupHandler
    from trajgym.rollout.fleet._launcher import Launcher, Room
    from trajgym.rollout.mixture import Draws, Mixture
    from trajgym.trajectory import Group, Run, SessionTree, Task

__all__ = ["Fleet"]

_log = logging.getLogger(__name__)
_LOOK = 1.0
"""Seconds between two looks at the machines: which have room, which are about to leave."""


class Fleet:
    """Runs sessions in several processes; tasks go in, sealed groups come out.

    ::

        async with Fleet(spec, tasks, make_policy, "runs/a", processes=4, samples=8) as fleet:
            async for sealed in fleet:
                ...

    A runner in one process is limited by its event loop to some hundred turns a second. A fleet is
    used like one: each process has a :class:`Runner`, takes the next task when it has room, and
    writes a file of its own; the files are one run. ``concurrency`` is the total of all processes.

    If a process dies, by whatever cause, another one takes its place. Sessions that were running
    read ``interrupted``, with all their acknowledged turns, and their samples are run again;
    finished ones are not, and no event, session or group is reported twice. A group whose processes
    die again and again is left unfinished, and :class:`RunIncomplete` names its task at the end.

    Processes are spawned, so a script must use the fleet under ``if __name__ == "__main__":``. They
    end when this process ends, even if it is killed.

    Args:
        spec: the environment, or a :class:`trajgym.rollout.mixture.Mixture` of several. The
            limits of its parts are divided among the processes.
        tasks: a plain or async iterable, read as tasks are needed, a few in advance. None for a
            mixture, which draws its own.
        make_policy: called in each process, and once in this one, whose policy only tells its
            identity. It is pickled: a module-level function or class, or a ``partial`` of one.
        out: run directory, created if missing.
        processes: number of processes.
        settings: how sessions are run.
        on_progress: called for every event, on the event loop; it must not block. The turns of
            events have no messages, observations and token ids; the store has them. An exception
            that it raises is logged.
        allow_changes: what may differ from an earlier call on the directory; see :class:`Runner`.
        limits: deadlines of the processes.
        launcher: starts the processes; on this machine by default. See
            :class:`trajgym.rollout.fleet.ray.RayLauncher` for others.
        make_handler: called in each process; what it returns is called with each group that the
            process seals, and :meth:`handled` passes on the results. A group whose process dies
            before its result is here is handled by another one. Pickled like ``make_policy``.
        environ: environment variables of the processes; None removes one.
        **overrides: settings by name: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        UnknownEnv: the spec names no environment.
        InvalidInput: a setting does not exist or is invalid, the policy's function can't be
            pickled; or, when the fleet is entered, the directory holds a run with other settings.
        StoreLocked: when the fleet is entered: another process collects into the same directory.
    """

    def __init__(
        self,
        spec: EnvSpec | Mixture,
        tasks: Iterable[Task] | AsyncIterator[Task] | None,
        make_policy: Callable[[], Policy],
        out: str | os.PathLike[str],
        *,
        processes: int = 2,
        settings: RunSettings | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        allow_changes: Collection[str] = (),
        limits: FleetLimits | None = None,
        launcher: Launcher | None = None,
        make_handler: Callable[[], GroupHandler] | None = None,
        environ: Mapping[str, str | None] | None = None,
        **overrides: Unpack[RunKeywords],
    ) -> None:
        if processes < 1:
            raise InvalidInput(f"processes is {processes}; it must be at least 1")
        self.settings = RunSettings.of(settings, overrides)
        self.spec = spec
        self.version = 0
        self.processes = processes
        self.limits = limits or FleetLimits()
        self.deaths = 0
        """Number of processes that died and were replaced."""
        self.unclosed = 0
        """Number of processes that were killed because they did not close their sessions."""
        known = tasks if isinstance(tasks, (list, tuple)) else ()
        self.places = Places(spec, self.settings, known)
        for place in self.places.all.values():
            place.spec.make()
            if place.limit is not None and place.limit < processes:
                raise InvalidInput(
                    f"part {place.name!r} of the mixture has a limit of {place.limit} sessions, "
                    f"which {processes} processes can't share"
                )
        self.draws = draws_of(spec, tasks, self.settings)
        """What a mixture draws; None without one."""
        self.capacity = Capacity(self.settings.admission)
        """How many groups have been begun, and may be."""
        self._make_policy = make_policy
        self._make_handler = make_handler
        self._environ = tuple((environ or {}).items())
        self._out = Path(out)
        self._known = [task for place in self.places.all.values() for task in place.tasks]
        self._source = as_async(() if tasks is None else tasks)
        self._on_progress = on_progress or (lambda _: None)
        self._allow_changes = allow_changes
        self._launcher: Launcher = launcher or ProcessLauncher()
        self._environments = [place.spec for place in self.places.all.values()]
        self._launcher.check((spec, make_policy, make_handler, self.settings))
        self._store: Store | None = None
        self._checks: KnownTasks | None = None
        self._earlier: dict[str, Earlier] = {}
        self._seen: Counter[str] = Counter()
        self._backlog = Backlog()
        self._open: dict[str, Job] = {}
        """Groups that were begun and have not ended."""
        self._unfinished: dict[str, str] = {}
        self._exhausted = self._stopping = self._paused = self._opened = False
        self._demand = asyncio.Semaphore(0)
        self._opening = asyncio.Lock()
        self._changed = Signal()
        self._alive: set[FleetWorker] = set()
        self._false_starts = 0
        self._untidy: set[str] = set()
        """Nodes where a process died since ``open_run``, which removes what it left, was called."""
        self._ready: list[tuple[int, Handled]] = []
        """Sealed groups, the one that was begun first at the front: a heap."""
        self._begun = 0
        self._background: set[asyncio.Task[None]] = set()
        self._run: Run | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._raised = False
        """Whether the supervisor's failure was raised to the caller."""

    # Hooks for trainers -------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are alive."""
        return [process.pid for process in self._alive if not process.closed.done()]

    async def set_version(self, version: int) -> None:
        """Record that the trainer's weights are now at ``version``, in every process.

        Like :meth:`pause` and :meth:`resume` it returns when all processes have confirmed it; one
        that does not within ``limits.answer`` seconds is killed and replaced.
        """
        if version < self.version:
            raise InvalidInput(f"policy version went back from {self.version} to {version}")
        self.version = version
        if self._supervisor is None:
            self.capacity.recover(version)
        await self._order("version", version)
        self._changed.ring()

    async def pause(self) -> None:
        """Delay new policy calls; running ones continue, without counting the agents' time."""
        self._paused = True
        await self._order("pause")

    async def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._paused = False
        await self._order("resume")

    def stop(self) -> None:
        """Start no further sessions; running ones continue, and their groups can be sealed."""
        if not self._stopping:
            self._stopping = True
            self._changed.ring()
            self._in_background(self._order("stop"))

    def abandon(self) -> None:
        """Let the processes close their sessions and end, and wait for them. Blocks.

        For a fleet in a thread at the exit of Python, when its event loop can't leave it any more:
        no thread can be started. Called by ``atexit``; the fleet is of no use afterwards.
        """
        self._stopping = True
        alive = list(self._alive)
        for process in alive:
            process.cancel()
        until = time.monotonic() + self.limits.stop
        for process in alive:
            process.join(max(0.0, until - time.monotonic()))

    async def _order(self, name: str, *arguments: Any) -> None:
        alive = list(self._alive)
        await asyncio.gather(*(process.order(name, *arguments) for process in alive))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The iterator -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        with contained():
            policy = self._make_policy()
        async with policy:
            if isinstance(policy, AttemptPolicy):
                for place in self.places.all.values():
                    policy.check(place.spec, place.settings)
            self._store = store = await asyncio.to_thread(Store, self._out)
            try:
                await without_writers(store, self.limits.stop)
                await claim_run(store, self.places, policy, self.settings, self._allow_changes)
                self._checks = await asyncio.to_thread(KnownTasks, store, self._allow_changes)
                for task in self._known:
                    self._checks.check(task)
                self._earlier = await asyncio.to_thread(
                    earlier_groups,
                    store,
                    keep_failed=self.settings.keep_failed,
                    max_tries=self.settings.max_tries,
                )
                if self.draws is not None:
                    await asyncio.to_thread(self._resume, self.draws, store)
                await self._launcher.open(self._environments)
            except BaseException:
                await store.aclose()
                raise
        self._supervisor = asyncio.create_task(self._supervise(), name="trajgym-fleet")
        self._supervisor.add_done_callback(lambda _: self._changed.ring())
        return self

    def _resume(self, draws: Draws, store: Store) -> None:
        with store.read_run() as run:
            draws.resume(run)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        supervisor, store = self._supervisor, self._store
        assert supervisor is not None
        assert store is not None
        supervisor.cancel()
        try:
            await asyncio.wait([supervisor, *self._background])
            await self._launcher.close()
        finally:
            if supervisor.done() and not supervisor.cancelled():
                failure = supervisor.exception()  # seen: __anext__ raised it, or it is logged
                if failure is not None and not self._raised:
                    _log.error("the fleet failed before it was left", exc_info=failure)
            if self._run is not None:
                self._run.close()
            await store.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SealedGroup:
        """Return the next sealed group: of those that are ready, the one that was begun first.

        Raises:
            RunIncomplete: the fleet ended with unfinished groups.
            FleetFailed: processes can't be started.
            StoreError: a process can't write its file any more.
        """
        if (handled := await self._next_sealed()) is None:
            raise StopAsyncIteration
        group = handled.group
        sealed = SealedGroup(group, await asyncio.to_thread(self._sessions, group))
        found = as_delivered(sealed, self.version, self.settings.max_staleness)
        if found.group is not group:  # its members left between sealing and delivery
            assert self._store is not None
            await self._store.put_group(found.group)
        return found

    async def handled(self) -> AsyncIterator[Handled]:
        """Yield sealed groups with what their handlers returned, and without their sessions.

        Members that became too old since their group was sealed are still among its members.

        Raises:
            RunIncomplete: see :meth:`__anext__`; and its other errors, and those of the handlers.
        """
        while (handled := await self._next_sealed()) is not None:
            yield handled

    async def drain(self) -> None:
        """Run until the tasks are finished, without reading the sealed groups.

        Raises:
            RunIncomplete: see :meth:`__anext__`; and its other errors.
        """
        while await self._next_sealed() is not None:
            pass

    async def _next_sealed(self) -> Handled | None:
        supervisor = self._supervisor
        if supervisor is None:
            raise RuntimeError("use the fleet as a context manager: async with Fleet(...)")
        while not self._ready and not supervisor.done():
            await self._changed.wait()
        if self._ready:
            self._changed.ring()  # there is room for another one
            return heappop(self._ready)[1]
        if supervisor.cancelled():
            raise RunIncomplete("the fleet's task was cancelled before the run was finished")
        self._raised = True
        await supervisor
        return None

    def _sessions(self, group: Group) -> list[SessionTree]:
        """Return the sessions that count, from whichever files they are in. Blocks."""
        members = sorted(group.counted, key=lambda member: member.sample)
        assert self._store is not None
        if self._run is not None:
            try:
                return [self._run.session(member.session) for member in members]
            except InvalidInput:  # in the file of a process that was started since
                self._run.close()
        self._run = self._store.read_run()
        return [self._run.session(member.session) for member in members]

    # Processes ------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read())
                nodes = tasks.create_task(self._watch_nodes())
                slots = [tasks.create_task(self._slot(i)) for i in range(self.processes)]
                await asyncio.wait(slots)
                reader.cancel()
                nodes.cancel()
        if self._background:
            await asyncio.wait(self._background)
        for node in list(self._untidy):
            await self._tidy(node)
        if self._unfinished and not self._stopping:
            lines = "; ".join(sorted(self._unfinished.values())[:5])
            raise RunIncomplete(
                f"{len(self._unfinished)} groups are not finished: {lines}; collect again to run "
                "what they lack",
            )

    async def _slot(self, index: int) -> None:
        """Keep one process at work until there is nothing left to do."""
        self._demand.release()
        while (room := await self._room(index)) is not None:
            try:
                if (job := await self._next_job(None)) is None:
                    return
                await self._life(index, room, job)
            finally:
                self._launcher.release(room)
            self._demand.release()

    async def _room(self, index: int) -> Room | None:
        """Wait for room for a process; None if there is nothing left to do."""
        sessions = Shard(index, self.processes).part(self.settings.concurrency)
        since = time.monotonic()
        while not self._stopping and not self._is_over():
            if (room := await self._launcher.reserve(sessions)) is not None:
                return room
            if self._alive:
                since = time.monotonic()
            elif time.monotonic() - since > self.limits.room:
                raise FleetFailed(
                    f"no room for a process within {self.limits.room:g} s: "
                    f"{self._launcher.shortage()}"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._changed.wait()
        return None

    async def _life(self, index: int, room: Room, job: Job) -> None:
        process = await self._started(index, room)
        process.jobs[job.group] = job
        self._alive.add(process)
        try:
            await process.order("version", self.version)
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
        if failure is not None or not process.done or (process.jobs and not self._stopping):
            await self._recover(process)
        self._alive.discard(process)
        self._changed.ring()

    async def _started(self, index: int, room: Room) -> FleetWorker:
        shard = Shard(index, self.processes)
        store = shard.store(self._out)
        writer = None
        if self._launcher.streamed:
            writer = await asyncio.to_thread(ShardWriter, store, self._out)
        recipe = Recipe(
            tuple({one.env_class.__module__ for one in self.places.all.values()}),
            shard.environments(self.spec),
            self._make_policy,
            replace(
                self.settings,
                concurrency=room.sessions,
                admission=None,  # tasks are admitted here
            ),
            store,
            self._out,
            self.limits.stop,
            None if writer is None else writer.last_key,
            self._make_handler,
            shard,
            self._environ,
        )
        try:
            return FleetWorker(
                self._launcher,
                recipe,
                room,
                index,
                self.limits,
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
            for process in self._alive:
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
            self._demand.release()
            if (next_job := await self._next_job(process)) is None:
                process.finish()
                return
            process.give(next_job)

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
            if self._false_starts >= self.limits.starts:
                if failure is not None:
                    raise failure.exception
                raise FleetFailed(
                    f"{self._false_starts} processes in a row died before they could run a "
                    f"session; the last one {process.end}",
                )
        for job, events, group in await asyncio.to_thread(
            what_is_left, process.recipe.store, jobs, self.settings
        ):
            for event in events:
                self._report(event)
            if group is not None and self._make_handler is None:
                self._sealed(process, Handled(group, None))
            else:
                job.earlier.sealed = False  # sealed again where it is handled
                self._queue_again(job, process, alone=len(jobs) == 1)
        process.jobs.clear()

    async def _tidy(self, node: str) -> None:
        """Remove what processes left on a node."""
        try:
            async with asyncio.timeout(self.limits.open):
                await self._launcher.tidy(node, self._environments)
        except Exception:  # boundary: environments and Ray; raised again for this machine
            if not node:
                raise
            _log.exception("what a dead process left on node %s may still be there", node)
        else:
            self._untidy.discard(node)

    def _queue_again(self, job: Job, process: FleetWorker, *, alone: bool) -> None:
        if process.began and not process.lost:  # else it was not begun, or it is not the cause
            job.deaths += 1
            job.alone += alone
        if job.alone >= self.limits.deaths:
            self._unfinished[job.group] = (
                f"task {job.task.id!r} ended its process {job.deaths} times (it {process.end})"
            )
            self._end_group(job, accepted=False)
        else:
            if job.deaths == 2:  # at the latest now: with endless tasks, its turn never comes
                _log.warning(
                    "task %r was running in two processes that ended; its group runs again alone, "
                    "after all other tasks",
                    job.task.id,
                )
            self._backlog.put_back(job)

    # Jobs -----------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read tasks as they are needed, and skip those whose groups are finished."""
        assert self._store is not None
        assert self._checks is not None
        while not self._stopping:
            await self._demand.acquire()
            while not self._may_read():
                await self._changed.wait()
            while (job := await self._read_one()) is not None and self._is_finished(job):
                pass
            if job is None:
                break
            while not self.capacity.admits(self.version):
                await self._changed.wait()
            self.capacity.begin()
            self._open[job.group] = job
            job.number = self._begun
            self._begun += 1
            await self._store.put_task(job.task)
            if self.draws is not None:
                await self._store.set_meta(*self.draws.record)
            self._backlog.add(job)
            self._changed.ring()
        self._exhausted = True
        self._changed.ring()

    async def _read_one(self) -> Job | None:
        if self.draws is not None:
            task = self.draws.draw(self._full())
        else:
            seconds = self.places.cancel_seconds
            with contained():
                task = await stoppable(
                    anext(self._source, None), "the task source", seconds=seconds
                )
        if task is None:
            return None
        assert self._checks is not None
        self._checks.check(task)
        name = group_id(task, self._seen[task.id])
        self._seen[task.id] += 1
        earlier = self._earlier.pop(name, None)
        return Job(task, name, Earlier() if earlier is None else earlier)

    def _is_finished(self, job: Job) -> bool:
        return job.earlier.sealed and not job.earlier.lacking(self.places.of(job.task).settings)

    def _may_read(self) -> bool:
        draws = self.draws
        if draws is None or draws.over:
            return True
        return self.capacity.admits(self.version) and draws.can_draw(self._full())

    def _full(self) -> set[str]:
        """Return the parts whose sessions in progress or queued reach their limit."""
        sessions: Counter[str] = Counter()
        for job in self._open.values():
            place = self.places.of(job.task)
            sessions[place.name] += max(1, place.settings.samples - len(job.ended))
        return {
            name
            for name, place in self.places.all.items()
            if place.limit is not None and sessions[name] >= place.limit
        }

    def _end_group(self, job: Job, *, accepted: bool) -> None:
        if self._open.pop(job.group, None) is not None:
            self.capacity.end(accepted=accepted)
            if self.draws is not None:
                self.draws.end(job.group)
            self._changed.ring()

    async def _next_job(self, process: FleetWorker | None) -> Job | None:
        """Return a group for a process, or for one to be started; None if there are no more."""
        while not self._stopping:
            if (job := self._pick(process)) is not None:
                return job
            if self._is_over():
                break
            await self._changed.wait()
        return None

    def _pick(self, process: FleetWorker | None) -> Job | None:
        if self.settings.admission is None and len(self._ready) >= self.settings.concurrency:
            return None  # the consumer is slower
        running = () if process is None else process.jobs.values()
        return self._backlog.take(running, complete=self._exhausted)

    def _is_over(self) -> bool:
        working = any(process.jobs for process in self._alive)
        return self._exhausted and not self._backlog and not working

    # Reports of the processes -----------------------------------------------------------------

    def _note(self, process: FleetWorker, event: Progress) -> None:
        job = process.jobs.get(event.session.partition("-")[0])
        if job is not None:
            job.note(event)
        self._report(event)

    def _report(self, event: Progress) -> None:
        if self.draws is not None:
            self.draws.note(event)
            if event.kind == "ended":
                self._changed.ring()
        try:
            with contained():
                self._on_progress(event)
        except Exception:  # noqa: BLE001 - boundary: a callback
            _log.exception("on_progress failed for %s %s", event.kind, event.session or event.task)

    def _sealed(self, process: FleetWorker, handled: Handled) -> None:
        group = handled.group
        if (job := process.jobs.pop(group.id, None)) is None:
            return
        self._end_group(job, accepted=bool(group.counted))
        self._report(Progress("sealed", "", group.task))
        heappush(self._ready, (job.number, handled))
        self._changed.ring()

    def _left_open(self, process: FleetWorker, group: str) -> None:
        job = process.jobs.pop(group, None)
        if job is not None:
            self._unfinished[group] = (
                f"task {job.task.id!r} has sessions that were cancelled by code that they run"
            )
            self._end_group(job, accepted=False)
            self._changed.ring()
