"""The loop that runs sessions of tasks and yields sealed groups."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self, Unpack

from trajgym.envs._runs import close_runs, open_runs
from trajgym.envs.faults import contained
from trajgym.rollout._dispatch import Dispatcher
from trajgym.rollout._drive import SessionHooks
from trajgym.rollout._policy import check_policy
from trajgym.rollout._progress import Progress
from trajgym.rollout._running import RunningSessions
from trajgym.rollout._sample import OpenGroup, run_sample
from trajgym.rollout._sealed import SealedGroup, as_delivered, without_rejected, without_stale
from trajgym.rollout._settings import RunSettings
from trajgym.rollout._source import GroupSource
from trajgym.rollout._supervisor import RunIncomplete, Supervisor
from trajgym.rollout.rules import SURPLUS, Ending
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterable,
        Sequence,
    )
    from types import TracebackType

    from trajgym.envs import EnvSpec, Session
    from trajgym.rollout._places import Place
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._resume import Earlier
    from trajgym.rollout._settings import RunKeywords
    from trajgym.rollout.mixture import Mixture
    from trajgym.trajectory import SessionTree, Store, Task

__all__ = ["Runner"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Work:
    """A group whose sessions are being run."""

    open: OpenGroup
    place: Place
    finished: dict[int, str]
    """Sessions of earlier runs that need not be run again, by sample."""
    scores: dict[int, float]
    """Scores of the samples that have ended with one."""
    trees: dict[int, SessionTree] = field(default_factory=dict)
    number: int = 0
    """How many groups were begun before: of those that are ready, the oldest is delivered first."""


class Runner:
    """Runs sessions of one or several environments with one policy, a bounded number at a time.

    ::

        async with Runner(spec, tasks, policy, store=store, samples=8) as runner:
            async for sealed in runner:
                ...

    An error in a task, session or policy call ends its own session only; only a store that can't be
    written stops the run. Sessions that an earlier run of the same store finished are not run
    again; failed, interrupted and cancelled ones are. If the consumer is slower than the workers,
    they wait: at most ``concurrency`` sealed groups are queued, unless ``admission`` is set.

    Args:
        spec: the environment, or a :class:`trajgym.rollout.mixture.Mixture` of several.
        tasks: a plain or async iterable, read as tasks are needed. A task that is yielded again
            makes another group. None for a mixture, which draws its own.
        policy: gives the assistant messages.
        store: where sessions are recorded.
        settings: how sessions are run.
        on_progress: called for every event, on the event loop; it must not block.
        allow_changes: what may differ from an earlier runner of the same store: ``tasks``,
            ``budgets``, ``policy``, ``seed``, ``expansion``. Other differences are refused when
            the runner is entered, and a task's when it is read.
        **overrides: settings by name: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        UnknownEnv: the spec names no environment.
        InvalidInput: a setting does not exist or is invalid, or the environment's rubric needs a
            judge and has none; or, when the runner is entered, the store holds a run with other
            settings.
    """

    def __init__(
        self,
        spec: EnvSpec | Mixture,
        tasks: Iterable[Task] | AsyncIterator[Task] | None,
        policy: Policy,
        *,
        store: Store,
        settings: RunSettings | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        allow_changes: Collection[str] = (),
        **overrides: Unpack[RunKeywords],
    ) -> None:
        check_policy(policy)
        self.settings = settings = RunSettings.of(settings, overrides)
        self.spec = spec
        self.policy = policy
        self.version = 0
        self._source = GroupSource(spec, tasks, settings)
        self.places = self._source.places
        self.draws = self._source.draws
        """What a mixture draws; None without one."""
        self.capacity = self._source.capacity
        """How many groups have been begun, and may be."""
        self._store = store
        self._on_progress = on_progress or (lambda _: None)
        self._allow_changes = allow_changes
        limits = {name: place.limit for name, place in self.places.all.items()}
        self._jobs: Dispatcher[tuple[_Work, int]] = Dispatcher(limits)
        # A rule of admission bounds what is ready; otherwise a slow consumer delays the workers.
        most = settings.concurrency if settings.admission is None else 0
        self._ready: asyncio.PriorityQueue[tuple[int, SealedGroup]]
        self._ready = asyncio.PriorityQueue(maxsize=most)
        self._stopping = False
        self._ending = False
        self._open: set[_Work] = set()
        self._running = RunningSessions()
        self._supervisor = Supervisor("runner")
        self._hooks = SessionHooks(
            slots=asyncio.Semaphore(settings.concurrency),
            before_turn=self._running.going,
            around=self._running.counted,
            on_begin=lambda session: self._report("began", session),
            on_turn=lambda session: self._report("turn", session),
            on_end=self._ended,
            interrupt=lambda session: self._running.begin(session, self.version),
        )

    # Hooks for trainers -------------------------------------------------------------------

    def set_version(self, version: int) -> None:
        """Record that the trainer's weights are now at ``version``."""
        if version < self.version:
            raise InvalidInput(f"policy version went back from {self.version} to {version}")
        self.version = version
        if not self._supervisor.started:
            self.capacity.recover(version)
        if self.settings.outdated is not None:
            self._running.end_outdated(self.settings.outdated, version)
        self._jobs.changed.ring()

    def pause(self) -> None:
        """Delay new policy calls; running ones continue, without counting the agents' time."""
        self._running.pause()

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._running.resume()

    def stop(self) -> None:
        """Start no further sessions; running ones continue, and their groups can be sealed."""
        self._stopping = True
        self._jobs.clear()

    # The iterator -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.places.check(self.policy)
        known = await self._claim()
        places = self.places
        await open_runs(
            (place.spec, [task for task in known if places.of(task) is place])
            for place in places.all.values()
        )
        self._supervisor.start(self._supervise())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending = True
        try:
            await self._supervisor.cancel()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            await close_runs([place.spec for place in self.places.all.values()], error)

    async def _claim(self) -> Sequence[Task]:
        """Compare the run with what is asked for, and read what is finished; return known tasks."""
        await self._source.claim(self._store, self.policy, self._allow_changes)
        return self._source.known

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SealedGroup:
        """Return the next sealed group: of those that are ready, the one that was begun first.

        Raises:
            StoreError: the store can't be written any more.
            RunIncomplete: the runner ended with unfinished groups.
        """
        supervisor = self._supervisor.task
        if self._ready.empty() and not supervisor.done():
            getter = asyncio.ensure_future(self._ready.get())
            try:
                await asyncio.wait([getter, supervisor], return_when=asyncio.FIRST_COMPLETED)
                if getter.done():
                    return await self._delivered(getter.result()[1])
            finally:
                getter.cancel()
        if not self._ready.empty():
            return await self._delivered(self._ready.get_nowait()[1])
        await self._supervisor.result()
        raise StopAsyncIteration

    async def _supervise(self) -> None:
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read())
                n = self.settings.concurrency
                workers = [tasks.create_task(self._work()) for _ in range(n)]
                await asyncio.wait(workers)
                reader.cancel()
        if self._open and not self._stopping:
            raise RunIncomplete(
                f"{len(self._open)} groups are not finished, including that of task "
                f"{min(work.open.task.id for work in self._open)!r}: some of their sessions were "
                "cancelled by code that they run; collect again to run them",
            )

    # Jobs ---------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while (job := await self._jobs.next()) is not None:
                place, (work, sample) = job
                await self._run_sample(work, sample)
                self._jobs.done(place)
                if work.open.complete:
                    await self._seal(work)
                elif not work.open.waiting:
                    self._end_group(work, accepted=False)
                    self._left_open(work.open)
        except BaseException:
            self._ending = True
            raise

    async def _read(self) -> None:
        """Begin the group of another task whenever a worker waits and the rules admit one."""
        try:
            while not self._stopping:
                await self._until(self._may_read)
                if (task := await self._source.read(self._jobs.full)) is None:
                    break
                await self._begin_group(task)
            self._jobs.finish()
        except BaseException:
            self._ending = True
            raise

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._jobs.changed.wait()

    def _may_read(self) -> bool:
        return self._jobs.starving and self._source.can_read(self.version, self._jobs.full)

    def _admits(self) -> bool:
        return self.capacity.admits(self.version)

    async def _begin_group(self, task: Task) -> None:
        place = self.places.of(task)
        name, earlier = self._group_of(task)
        opened = OpenGroup.of(task, place.settings.samples, store=self._store, id=name)
        opened.waiting = earlier.lacking(place.settings)
        if not opened.waiting and earlier.sealed:
            return
        await self._until(self._admits)  # read before it may begin, to see the end of the tasks
        opened.group.members += earlier.members
        opened.tries.update(earlier.tries)
        scores = dict(earlier.scores)
        work = _Work(opened, place, earlier.finished, scores, number=self._source.begin())
        if not opened.waiting:
            self._end_if_enough(work)
        self._open.add(work)
        await self._store.put_task(task)
        await self._store.put_group(opened.group)
        await self._source.record(self._store)
        self._jobs.add(place.name, ((work, sample) for sample in sorted(opened.waiting)))
        if not opened.waiting:  # killed between its last session and its sealing
            await self._seal(work)

    def _end_group(self, work: _Work, *, accepted: bool) -> None:
        self._source.end(work.open.group.id, accepted=accepted)
        self._jobs.changed.ring()

    def _group_of(self, task: Task) -> tuple[str, Earlier]:
        """Return the id of a task's next group, and what the run has of it."""
        return self._source.group_of(task)

    def _left_open(self, group: OpenGroup) -> None:
        """Called when all samples of a group have ended but it can't be sealed."""

    async def _run_sample(self, work: _Work, sample: int) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        try:
            session = await run_sample(
                work.place.spec,
                self.policy,
                work.open,
                sample,
                settings=work.place.settings,
                hooks=self._hooks,
            )
        except asyncio.CancelledError:
            if self._ending or self._supervisor.task.cancelling():
                raise
            # User code cancelled the task that it ran in. The session is recorded as cancelled, and
            # the worker continues.
            while worker.cancelling():
                worker.uncancel()
            work.open.waiting.discard(sample)
            work.open.unfinished = True
            return
        work.trees[sample] = session.tree
        if session.outcome is not None:
            work.scores[sample] = session.outcome.score
        self._end_if_enough(work)

    def _end_if_enough(self, work: _Work) -> None:
        """Let a group that has enough sessions end: drop what is queued, and cancel the rest."""
        enough = work.place.settings.enough
        if enough is None or work.open.full:
            return
        kept = enough.kept(work.scores, work.open.waiting)
        if kept is None:
            return
        work.open.end_early(kept, exactly=enough.in_order)
        for sample in sorted(work.open.waiting):
            if self._jobs.remove(work.place.name, (work, sample)):
                work.open.waiting.discard(sample)
        ending = Ending("cancelled", "", f"{SURPLUS}: the group has enough sessions")
        self._running.end_group(work.open.group.id, ending)

    # Sealing ------------------------------------------------------------------------------

    async def _seal(self, work: _Work) -> None:
        group = work.open.group
        for sample, name in work.finished.items():
            work.trees[sample] = await asyncio.to_thread(self._load, name)
        most = self.settings.max_staleness
        group.members = without_stale(group.members, work.trees.values(), self.version, most)
        if (select := work.place.settings.select) is not None:
            group.members = await asyncio.to_thread(without_rejected, select, group, work.trees)
        await work.open.seal()
        counted = {member.sample for member in group.counted}
        trees = [work.trees[sample] for sample in sorted(counted)]
        self._open.discard(work)
        self._end_group(work, accepted=bool(counted))
        try:
            with contained():
                self._on_progress(Progress("sealed", "", group.task))
        except Exception:  # noqa: BLE001 - boundary: a callback; the group is sealed already
            _log.exception("group %s: on_progress failed", group.id)
        await self._ready.put((work.number, SealedGroup(group, trees)))

    def _load(self, session_id: str) -> SessionTree:
        with self._store.read_run() as run:
            return run.session(session_id)

    async def _delivered(self, sealed: SealedGroup) -> SealedGroup:
        """Return a group as it is at the current version, and record the members that left."""
        found = as_delivered(sealed, self.version, self.settings.max_staleness)
        if found.group is not sealed.group:
            await self._store.put_group(found.group)
        return found

    def _ended(self, session: Session) -> None:
        self._running.end(session)
        score = None if session.outcome is None else session.outcome.score
        self._report("ended", session, str(session.status), score)

    def _report(
        self,
        kind: Literal["began", "turn", "ended"],
        session: Session,
        status: str = "",
        score: float | None = None,
    ) -> None:
        turn = session.turns[-1] if kind == "turn" else None
        cause = session.attempt.cause if kind == "ended" else ""
        task = session.record.task
        event = Progress(kind, session.id, task, status, score, turn, cause)
        self._source.note(event)
        self._on_progress(event)
