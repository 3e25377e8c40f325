"""The loop that runs sessions of tasks and yields sealed groups."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, Unpack

from trajgym.envs import EnvSpec
from trajgym.envs._runs import close_runs, open_runs
from trajgym.envs.faults import contained, stoppable
from trajgym.rewards import TurnTable
from trajgym.rollout._dispatch import Dispatcher
from trajgym.rollout._drive import SessionHooks
from trajgym.rollout._fingerprint import KnownTasks, claim_run
from trajgym.rollout._places import Place, Places
from trajgym.rollout._policy import AttemptPolicy
from trajgym.rollout._resume import Earlier, earlier_groups
from trajgym.rollout._sample import STALE, OpenGroup, group_id, oldest_version, run_sample
from trajgym.rollout._settings import RunSettings
from trajgym.rollout.mixture import Draws, Mixture
from trajgym.rollout.rules import SURPLUS, Capacity, Ending, Interrupt
from trajgym.trajectory import InvalidInput, Task, TrajgymError
from trajgym.trajectory._internal import first_error, group_html

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import TracebackType

    from trajgym.envs import Session
    from trajgym.rewards.filters import Filter
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._settings import RunKeywords
    from trajgym.trajectory import Group, Member, SessionTree, Store, Turn

__all__ = ["Progress", "RunIncomplete", "Runner", "SealedGroup"]

_log = logging.getLogger(__name__)


class SealedGroup(NamedTuple):
    """A group whose members will not change any more."""

    group: Group
    sessions: list[SessionTree]
    """Sessions of the members that count, in the order of their samples."""

    def __repr__(self) -> str:
        scores = [f"{a.outcome.score:g}" for t in self.sessions for a in t.attempts if a.outcome]
        return (
            f"<SealedGroup {self.group.id}: task {self.group.task}, {len(self.sessions)} of "
            f"{self.group.planned} sessions, scores {', '.join(scores) or 'none'}>"
        )

    def _repr_html_(self) -> str:
        return group_html(self.group, self.sessions)


class Progress(NamedTuple):
    """An event, for progress bars and metrics."""

    kind: Literal["began", "turn", "ended", "sealed"]
    session: str
    task: str
    status: str = ""
    score: float | None = None
    turn: Turn | None = None
    """The turn that was recorded, for ``turn``."""
    cause: str = ""
    """Why the session failed, for ``ended``."""


class RunIncomplete(TrajgymError):
    """The runner ended with unfinished groups, although :meth:`Runner.stop` was not called."""


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


class _Running(NamedTuple):
    """A session that has begun, and what ends it."""

    session: Session
    interrupt: Interrupt
    version: int
    """The policy version at which it began."""


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
        _check(spec, policy, tasks)
        self.settings = settings = RunSettings.of(settings, overrides)
        self.spec = spec
        self.policy = policy
        self.version = 0
        known = tasks if isinstance(tasks, (list, tuple)) else ()
        self.places = Places(spec, settings, known)
        self.draws = draws_of(spec, tasks, settings)
        """What a mixture draws; None without one."""
        self.capacity = Capacity(settings.admission)
        """How many groups have been begun, and may be."""
        self._source = as_async(() if tasks is None else tasks)
        self._store = store
        self._on_progress = on_progress or (lambda _: None)
        self._allow_changes = allow_changes
        self._known: KnownTasks | None = None
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._earlier: dict[str, Earlier] = {}
        self._seen: Counter[str] = Counter()
        limits = {name: place.limit for name, place in self.places.all.items()}
        self._jobs: Dispatcher[tuple[_Work, int]] = Dispatcher(limits)
        # A rule of admission bounds what is ready; otherwise a slow consumer delays the workers.
        most = settings.concurrency if settings.admission is None else 0
        self._ready: asyncio.PriorityQueue[tuple[int, SealedGroup]]
        self._ready = asyncio.PriorityQueue(maxsize=most)
        self._begun = 0
        """Number of groups that were begun."""
        self._going = asyncio.Event()
        self._going.set()
        self._stopping = False
        self._ending = False
        self._open: set[_Work] = set()
        self._active: set[Session] = set()
        self._interrupts: dict[str, _Running] = {}
        self._holds = ExitStack()
        self._supervisor: asyncio.Task[None] | None = None
        self._raised = False
        """Whether the supervisor's failure was raised to the caller."""
        self._hooks = SessionHooks(
            slots=self._slots,
            before_turn=self._going.wait,
            around=self._counted,
            on_begin=lambda session: self._report("began", session),
            on_turn=lambda session: self._report("turn", session),
            on_end=self._ended,
            interrupt=self._interrupt,
        )

    # Hooks for trainers -------------------------------------------------------------------

    def set_version(self, version: int) -> None:
        """Record that the trainer's weights are now at ``version``."""
        if version < self.version:
            raise InvalidInput(f"policy version went back from {self.version} to {version}")
        self.version = version
        if self._supervisor is None:
            self.capacity.recover(version)
        self._end_outdated()
        self._jobs.changed.ring()

    def pause(self) -> None:
        """Delay new policy calls; running ones continue, without counting the agents' time."""
        if self._going.is_set():
            self._going.clear()
            for session in self._active:
                self._holds.enter_context(session.clock.hold())

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._holds.close()
        self._going.set()

    def stop(self) -> None:
        """Start no further sessions; running ones continue, and their groups can be sealed."""
        self._stopping = True
        self._jobs.clear()

    # The iterator -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if isinstance(self.policy, AttemptPolicy):
            for place in self.places.all.values():
                self.policy.check(place.spec, place.settings)
        known = await self._claim()
        places = self.places
        await open_runs(
            (place.spec, [task for task in known if places.of(task) is place])
            for place in places.all.values()
        )
        self._supervisor = asyncio.create_task(self._supervise(), name="trajgym-runner")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        supervisor = self._supervisor
        assert supervisor is not None
        self._ending = True
        supervisor.cancel()
        try:
            await asyncio.wait([supervisor])
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            if supervisor.done() and not supervisor.cancelled():
                failure = supervisor.exception()  # seen: __anext__ raised it, or it is logged
                if failure is not None and not self._raised:
                    _log.error("the runner failed before it was left", exc_info=failure)
            await close_runs([place.spec for place in self.places.all.values()], error)

    async def _claim(self) -> Sequence[Task]:
        """Compare the run with what is asked for, and read what is finished; return known tasks."""
        known = [task for place in self.places.all.values() for task in place.tasks]
        allowed = self._allow_changes
        await claim_run(self._store, self.places, self.policy, self.settings, allowed)
        self._known = await asyncio.to_thread(KnownTasks, self._store, allowed)
        for task in known:
            self._known.check(task)
        self._earlier = await asyncio.to_thread(
            earlier_groups,
            self._store,
            keep_failed=self.settings.keep_failed,
            max_tries=self.settings.max_tries,
        )
        if self.draws is not None:
            await asyncio.to_thread(self._resume, self.draws)
        return known

    def _resume(self, draws: Draws) -> None:
        with self._store.read_run() as run:
            draws.resume(run)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SealedGroup:
        """Return the next sealed group: of those that are ready, the one that was begun first.

        Raises:
            StoreError: the store can't be written any more.
            RunIncomplete: the runner ended with unfinished groups.
        """
        supervisor = self._supervisor
        if supervisor is None:
            raise RuntimeError("use the runner as a context manager: async with Runner(...)")
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
        if supervisor.cancelled():
            raise RunIncomplete("the runner's task was cancelled before the run was finished")
        self._raised = True
        await supervisor
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
                if (task := await self._next_task()) is None:
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
        if not self._jobs.starving:
            return False
        draws = self.draws
        return draws is None or draws.over or (self._admits() and draws.can_draw(self._jobs.full))

    def _admits(self) -> bool:
        return self.capacity.admits(self.version)

    async def _next_task(self) -> Task | None:
        if self.draws is not None:
            return self.draws.draw(self._jobs.full)
        with contained():
            one = anext(self._source, None)
            task = await stoppable(one, "the task source", seconds=self.places.cancel_seconds)
        if task is not None:
            _check_task(task)
        return task

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
        work = _Work(opened, place, earlier.finished, scores, number=self._begun)
        if not opened.waiting:
            self._end_if_enough(work)
        self._begun += 1
        self.capacity.begin()
        self._open.add(work)
        await self._store.put_task(task)
        await self._store.put_group(opened.group)
        if self.draws is not None:
            await self._store.set_meta(*self.draws.record)
        self._jobs.add(place.name, ((work, sample) for sample in sorted(opened.waiting)))
        if not opened.waiting:  # killed between its last session and its sealing
            await self._seal(work)

    def _end_group(self, work: _Work, *, accepted: bool) -> None:
        self.capacity.end(accepted=accepted)
        if self.draws is not None:
            self.draws.end(work.open.group.id)
        self._jobs.changed.ring()

    def _group_of(self, task: Task) -> tuple[str, Earlier]:
        """Return the id of a task's next group, and what the run has of it."""
        assert self._known is not None
        self._known.check(task)
        name = group_id(task, self._seen[task.id])
        self._seen[task.id] += 1
        return name, self._earlier.pop(name, None) or Earlier()

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
            assert self._supervisor is not None
            if self._ending or self._supervisor.cancelling():
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
        group = work.open.group.id
        for sample in sorted(work.open.waiting):
            if self._jobs.remove(work.place.name, (work, sample)):
                work.open.waiting.discard(sample)
        ending = Ending("cancelled", "", f"{SURPLUS}: the group has enough sessions")
        for running in self._interrupts.values():
            if running.session.record.group == group:
                running.interrupt.set(ending)

    # Ending sessions ----------------------------------------------------------------------

    def _interrupt(self, session: Session) -> Interrupt:
        running = _Running(session, Interrupt(), self.version)
        self._interrupts[session.id] = running
        return running.interrupt

    def _end_outdated(self) -> None:
        rule = self.settings.outdated
        if rule is None:
            return
        for running in self._interrupts.values():
            low = oldest_version(running.session.tree)
            behind = self.version - (running.version if low is None else low)
            if behind > rule.versions:
                cause = f"its oldest token is {behind} versions behind"
                kind: Literal["truncated", "failed"] = (
                    "truncated" if rule.action == "cut" else "failed"
                )
                running.interrupt.set(Ending(kind, STALE.detail, cause))

    @contextmanager
    def _counted(self, session: Session) -> Iterator[None]:
        """Register the session, so that :meth:`pause` stops its clock."""
        self._active.add(session)
        try:
            yield
        finally:
            self._active.discard(session)

    # Sealing ------------------------------------------------------------------------------

    async def _seal(self, work: _Work) -> None:
        group = work.open.group
        for sample, name in work.finished.items():
            work.trees[sample] = await asyncio.to_thread(self._load, name)
        most = self.settings.max_staleness
        group.members = without_stale(group.members, work.trees.values(), self.version, most)
        if (select := work.place.settings.select) is not None:
            await asyncio.to_thread(_filter, select, group, work.trees)
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
        self._interrupts.pop(session.id, None)
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
        if self.draws is not None:
            self.draws.note(event)
        self._on_progress(event)


def _filter(select: Filter, group: Group, trees: Mapping[int, SessionTree]) -> None:
    """Let the members leave that a filter does not choose."""
    counted = {member.session for member in group.counted}
    chosen = [tree for tree in trees.values() if tree.record.id in counted]
    table = TurnTable.build([replace(group, sealed=True)], chosen)
    kept = set(select.select(table).sessions)
    left = f"filtered:{select.name}"
    group.members = [
        member._replace(left=left) if not member.left and member.session not in kept else member
        for member in group.members
    ]


def without_stale(
    members: Sequence[Member], trees: Iterable[SessionTree], version: int, most: int | None
) -> list[Member]:
    """Return a group's members; those with a token that is too old have left as ``stale``.

    Args:
        members: the members.
        trees: sessions of those that count.
        version: the trainer's policy version.
        most: versions that a session's oldest sampled token may be behind; None for any number.
    """
    if most is None:
        return list(members)
    oldest = {tree.record.id: oldest_version(tree) for tree in trees}

    def left(member: Member) -> str:
        low = oldest.get(member.session)
        is_stale = not member.left and low is not None and version - low > most
        return "stale" if is_stale else member.left

    return [member._replace(left=left(member)) for member in members]


def as_delivered(sealed: SealedGroup, version: int, most: int | None) -> SealedGroup:
    """Return a sealed group as a trainer at a version gets it; the same group if none left."""
    members = without_stale(sealed.group.members, sealed.sessions, version, most)
    if members == sealed.group.members:
        return sealed
    group = replace(sealed.group, members=members)
    counted = {member.session for member in group.counted}
    trees = [tree for tree in sealed.sessions if tree.record.id in counted]
    return SealedGroup(group, trees)


def draws_of(
    spec: EnvSpec | Mixture,
    tasks: Iterable[Task] | AsyncIterator[Task] | None,
    settings: RunSettings,
) -> Draws | None:
    """Return what a run draws its tasks from; None if it is given them.

    Raises:
        InvalidInput: there are no tasks and no mixture.
    """
    if tasks is not None:
        return None
    if not isinstance(spec, Mixture):
        raise InvalidInput("tasks is None; only a Mixture has tasks of its own")
    return Draws(spec, settings.seed)


def _check(spec: object, policy: object, tasks: object) -> None:
    """Check the types of a run's arguments; tasks of an iterator are checked as they are drawn.

    Raises:
        InvalidInput: one has another type.
    """
    if not isinstance(spec, EnvSpec | Mixture):
        raise InvalidInput(
            f"the environment is {_shown(spec)}; give EnvSpec(id=...), or a Mixture of several"
        )
    if isinstance(policy, type) or not hasattr(policy, "sample"):
        raise InvalidInput(
            f"the policy is {_shown(policy)}; give an instance of a Policy: ScriptedPolicy(...) "
            "takes a function or a list of answers"
        )
    if isinstance(tasks, str):
        raise InvalidInput(f"tasks is the text {tasks!r:.100}; read them by load_tasks(...)")
    for task in tasks if isinstance(tasks, list | tuple) else ():
        _check_task(task)


def _check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise InvalidInput(
            f"a task is {_shown(task)}; give Task(id=...): load_tasks(...) reads files and dicts"
        )


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


async def as_async(tasks: Iterable[Task] | AsyncIterator[Task]) -> AsyncIterator[Task]:
    if hasattr(tasks, "__aiter__"):
        async for task in tasks:
            yield task
        return
    iterator: Iterator[Task] = iter(tasks)
    while (one := await asyncio.to_thread(next, iterator, None)) is not None:
        yield one
