"""The one loop that drives sessions: tasks in, sealed groups out."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections import Counter, deque
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from trajgym.envs import Session
from trajgym.rollout._branching import Branching
from trajgym.rollout._drive import derive_seed, drive
from trajgym.rollout._resume import (
    EXPANSION,
    Earlier,
    earlier_groups,
    is_finished,
    left_reason,
)
from trajgym.trajectory import Group, InvalidInput, Member, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from trajgym.envs import Budgets, EnvSpec
    from trajgym.rollout._expansion import Expansion
    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import SessionTree, Store, Task

__all__ = ["Progress", "Runner", "SealedGroup", "group_id"]


def group_id(task: Task, repetition: int = 0) -> str:
    """Return the id of a task's group: equal in every run, and without underscores."""
    name = f"{task.id}#{repetition}" if repetition else task.id
    return hashlib.sha256(name.encode()).hexdigest()[:16]


class SealedGroup(NamedTuple):
    """A group none of whose members will change any more."""

    group: Group
    sessions: list[SessionTree]
    """Sessions of the members that count, in the order of their samples."""


class Progress(NamedTuple):
    """What has just happened; for progress bars and metrics."""

    kind: Literal["began", "turn", "ended", "sealed"]
    session: str
    task: str
    status: str = ""
    score: float | None = None


@dataclass(slots=True)
class _Work:
    """A group in the making."""

    task: Task
    group: Group
    earlier: Earlier
    waiting: set[int]
    trees: dict[int, SessionTree] = field(default_factory=dict)
    unfinished: bool = False
    """A sample was cancelled: the group stays open, and a later run finishes it."""


class Runner:
    """Drives sessions of one environment with one policy, a bounded number at once.

    ::

        async with Runner(spec, tasks, policy, store=store, samples=8) as runner:
            async for sealed in runner:
                ...

    A broken task, session or policy call ends its own session and nothing else; only a store that
    can't be written stops the run. Sessions that an earlier run of the same store finished are not
    run again; interrupted and cancelled ones are. A consumer that falls behind holds the workers
    back: at most ``concurrency`` sealed groups wait for it.

    Args:
        spec: the environment.
        tasks: the tasks, read as they are needed, plain or async. A task that comes again makes
            another group.
        policy: who speaks.
        store: where sessions are recorded.
        samples: planned members of each group.
        concurrency: sessions at once.
        budgets: instead of the environment's own.
        retries: further tries of a sample whose session ended ``failed``; the failed session
            stays in the group as a member that left.
        max_staleness: members whose oldest sampled token is more versions behind leave the group
            as ``stale`` when it is sealed; None keeps them.
        seed: everything random derives from it: the environment's seed from the task, so that a
            group shares its world, and the sampling seed from session and turn.
        deadline: wall-clock seconds of one session, waiting included; then it ends
            ``failed:deadline``.
        labels: recorded with every session.
        on_progress: called for every event, on the event loop; keep it quick.
        snapshot_every: see :class:`trajgym.envs.Session`.
        expansion: forks each session whose first attempt was scored, and drives the rivals within
            the same ``concurrency``; their statuses don't count for ``retries``. A session whose
            tree was cut short is run again on resume, whole.

    Raises:
        UnknownEnv: the spec names no environment.
        InvalidInput: a number is out of range.
    """

    def __init__(
        self,
        spec: EnvSpec,
        tasks: Iterable[Task] | AsyncIterator[Task],
        policy: Policy,
        *,
        store: Store,
        samples: int = 1,
        concurrency: int = 8,
        budgets: Budgets | None = None,
        retries: int = 0,
        max_staleness: int | None = None,
        seed: int = 0,
        deadline: float = 6 * 3600.0,
        labels: Mapping[str, str] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        snapshot_every: int = 0,
        expansion: Expansion | None = None,
    ) -> None:
        for name, value, least in (
            ("samples", samples, 1),
            ("concurrency", concurrency, 1),
            ("retries", retries, 0),
            ("snapshot_every", snapshot_every, 0),
        ):
            if value < least:
                raise InvalidInput(f"runner: {name} is {value}; it must be at least {least}")
        self.spec = spec
        self.policy = policy
        self.version = 0
        self._env_class = spec.resolve()
        self._tasks = tasks
        self._source = _as_async(tasks)
        self._store = store
        self._samples = samples
        self._concurrency = concurrency
        self._budgets = budgets
        self._retries = retries
        self._max_staleness = max_staleness
        self._seed = seed
        self._deadline = deadline
        self._labels = dict(labels or {})
        self._on_progress = on_progress or (lambda _: None)
        self._snapshot_every = snapshot_every
        self._expansion = expansion
        if expansion is not None:
            self._labels[EXPANSION] = repr(expansion)
        self._slots = asyncio.Semaphore(concurrency)
        self._earlier: dict[str, Earlier] = {}
        self._seen: Counter[str] = Counter()
        self._pending: deque[tuple[_Work, int]] = deque()
        self._next_lock = asyncio.Lock()
        self._ready: asyncio.Queue[SealedGroup] = asyncio.Queue(maxsize=concurrency)
        self._going = asyncio.Event()
        self._going.set()
        self._stopping = False
        self._active: set[Session] = set()
        self._holds = ExitStack()
        self._supervisor: asyncio.Task[None] | None = None

    # Hooks for trainers -------------------------------------------------------------------

    def set_version(self, version: int) -> None:
        """Tell the runner that the trainer's weights are now at ``version``."""
        if version < self.version:
            raise InvalidInput(f"policy version went back from {self.version} to {version}")
        self.version = version

    def pause(self) -> None:
        """Let no policy call begin; those under way go on, off the agents' clocks."""
        if self._going.is_set():
            self._going.clear()
            for session in self._active:
                self._holds.enter_context(session.clock.hold())

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._holds.close()
        self._going.set()

    def stop(self) -> None:
        """Begin no further session; those under way go on, and their groups may be sealed."""
        self._stopping = True

    # The iterator -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        known = self._tasks if isinstance(self._tasks, (list, tuple)) else ()
        await self._env_class.open_run(self.spec.config, known)
        self._earlier = await asyncio.to_thread(earlier_groups, self._store)
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
        supervisor.cancel()
        try:
            await asyncio.wait([supervisor])
        finally:
            if supervisor.done() and not supervisor.cancelled():
                supervisor.exception()  # seen: __anext__ raised it, or the body's own comes first
            await self._env_class.close_run(self.spec.config)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SealedGroup:
        """Return the next group to be sealed.

        Raises:
            StoreError: the store can't be written any more.
        """
        supervisor = self._supervisor
        if supervisor is None:
            raise RuntimeError("use the runner as a context manager: async with Runner(...)")
        if self._ready.empty() and not supervisor.done():
            getter = asyncio.ensure_future(self._ready.get())
            try:
                await asyncio.wait([getter, supervisor], return_when=asyncio.FIRST_COMPLETED)
                if getter.done():
                    return getter.result()
            finally:
                getter.cancel()
        if not self._ready.empty():
            return self._ready.get_nowait()
        await supervisor
        raise StopAsyncIteration

    async def _supervise(self) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._concurrency):
                    workers.create_task(self._work())
        except* StoreError as group:
            raise group.exceptions[0] from None

    # Jobs ---------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (job := await self._next_job()) is not None:
            work, sample = job
            await self._run_sample(work, sample)
            if not work.waiting:
                await self._seal(work)

    async def _next_job(self) -> tuple[_Work, int] | None:
        async with self._next_lock:
            while not self._pending and not self._stopping:
                task = await anext(self._source, None)
                if task is None:
                    return None
                await self._begin_group(task)
            return None if self._stopping else self._pending.popleft()

    async def _begin_group(self, task: Task) -> None:
        name = group_id(task, self._seen[task.id])
        self._seen[task.id] += 1
        earlier = self._earlier.pop(name, None) or Earlier()
        missing = [s for s in range(self._samples) if s not in earlier.finished]
        if not missing and earlier.sealed:
            return
        members = list(earlier.members)
        group = Group(id=name, task=task.id, planned=self._samples, members=members)
        work = _Work(task, group, earlier, set(missing))
        await self._store.put_task(task)
        await self._store.put_group(group)
        self._pending.extend((work, sample) for sample in missing)
        if not missing:  # killed between its last session and its sealing
            await self._seal(work)

    async def _run_sample(self, work: _Work, sample: int) -> None:
        for _ in range(self._retries + 1):
            session = self._session(work, sample)
            await self._run_session(session, work.task, sample)
            status = session.status
            work.group.members.append(Member(session.id, sample, left_reason(status)))
            work.trees[sample] = session.tree
            if self._expansion is not None:
                await self._store.put_group(work.group)  # from here on its tree counts as whole
            score = None if session.outcome is None else session.outcome.score
            self._report("ended", session, str(status), score)
            if status.kind != "failed":
                break
        work.unfinished = work.unfinished or not is_finished(status)
        work.waiting.discard(sample)

    def _session(self, work: _Work, sample: int) -> Session:
        attempt = work.earlier.tries.get(sample, 0)
        work.earlier.tries[sample] = attempt + 1
        name = f"{work.group.id}-{sample}"
        return Session(
            self.spec,
            work.task,
            store=self._store,
            session_id=f"{name}.{attempt}" if attempt else name,
            group=work.group.id,
            sample=sample,
            seed=derive_seed(self._seed, work.task.id),
            budgets=self._budgets,
            labels={"policy": self.policy.name, **self._labels},
            snapshot_every=self._snapshot_every,
        )

    async def _run_session(self, session: Session, task: Task, sample: int) -> None:
        await self._going.wait()
        self._report("began", session)
        try:
            async with AsyncExitStack() as opened:
                async with self._slots:
                    with self._counted(session):
                        await opened.enter_async_context(session)
                        await self._run_attempt(session, task, sample)
                if self._expansion is not None and session.status.scored:
                    await self._grow(session, self._expansion, task, sample)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: recorded by the session
            if not session.done:
                await session.fail("runner", repr(error), traceback.format_exc())

    async def _grow(self, session: Session, expansion: Expansion, task: Task, sample: int) -> None:
        async def drive(rival: Session) -> None:
            with self._counted(rival):
                await self._run_attempt(rival, task, sample)

        seed = derive_seed(self._seed, session.id)
        seconds = self._deadline
        await Branching(
            session, expansion, slots=self._slots, drive=drive, seed=seed, seconds=seconds
        ).grow()

    async def _run_attempt(self, session: Session, task: Task, sample: int) -> None:
        await drive(
            session,
            self.policy,
            task,
            sample=sample,
            seed=self._seed,
            deadline=self._deadline,
            before_turn=self._going.wait,
            after_turn=lambda turned: self._report("turn", turned),
        )

    @contextmanager
    def _counted(self, session: Session) -> Iterator[None]:
        """Let :meth:`pause` hold the session's clock."""
        self._active.add(session)
        try:
            yield
        finally:
            self._active.discard(session)

    # Sealing ------------------------------------------------------------------------------

    async def _seal(self, work: _Work) -> None:
        group = work.group
        if work.unfinished:
            return
        for sample, name in work.earlier.finished.items():
            work.trees[sample] = await asyncio.to_thread(_load, self._store, name)
        if self._max_staleness is not None:
            group.members = [self._unless_stale(work, member) for member in group.members]
        group.sealed = True
        await self._store.put_group(group)
        counted = {member.sample for member in group.counted}
        trees = [work.trees[sample] for sample in sorted(counted)]
        self._on_progress(Progress("sealed", "", work.task.id))
        await self._ready.put(SealedGroup(group, trees))

    def _unless_stale(self, work: _Work, member: Member) -> Member:
        if member.left:
            return member
        versions = [
            segment.version_low
            for turn in work.trees[member.sample].turns
            if turn.tokens is not None
            for segment in turn.tokens.segments
            if segment.sampled
        ]
        assert self._max_staleness is not None
        if versions and self.version - min(versions) > self._max_staleness:
            return member._replace(left="stale")
        return member

    def _report(
        self,
        kind: Literal["began", "turn", "ended"],
        session: Session,
        status: str = "",
        score: float | None = None,
    ) -> None:
        self._on_progress(Progress(kind, session.id, session.record.task, status, score))


def _load(store: Store, session_id: str) -> SessionTree:
    with store.read() as run:
        return run.session(session_id)


async def _as_async(tasks: Iterable[Task] | AsyncIterator[Task]) -> AsyncIterator[Task]:
    if hasattr(tasks, "__aiter__"):
        async for task in tasks:
            yield task
        return
    iterator: Iterator[Task] = iter(tasks)
    while (one := await asyncio.to_thread(next, iterator, None)) is not None:
        yield one
