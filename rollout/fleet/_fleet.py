"""Runners in processes, here or elsewhere, that share tasks and a run and survive deaths."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from trajgym.envs.faults import contained
from trajgym.rollout._policy import check_policy
from trajgym.rollout._resume import without_writers
from trajgym.rollout._sealed import SealedGroup, as_delivered
from trajgym.rollout._settings import RunSettings
from trajgym.rollout._signal import Signal
from trajgym.rollout._source import GroupSource
from trajgym.rollout._supervisor import Supervisor
from trajgym.rollout.fleet._child import Recipe
from trajgym.rollout.fleet._launcher import ProcessLauncher
from trajgym.rollout.fleet._limits import FleetLimits
from trajgym.rollout.fleet._members import MemberReader
from trajgym.rollout.fleet._pool import WorkerPool
from trajgym.rollout.fleet._queue import JobQueue
from trajgym.rollout.fleet._ready import ReadyGroups
from trajgym.trajectory import InvalidInput, Store
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
    from types import TracebackType

    from trajgym.envs import EnvSpec
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._settings import RunKeywords
    from trajgym.rollout.fleet._handling import GroupHandler, Handled
    from trajgym.rollout.fleet._launcher import Launcher
    from trajgym.rollout.mixture import Mixture
    from trajgym.trajectory import Task

__all__ = ["Fleet"]

_log = logging.getLogger(__name__)


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
        self._source = GroupSource(spec, tasks, self.settings)
        self.places = self._source.places
        for place in self.places.all.values():
            place.spec.make()
            if place.limit is not None and place.limit < processes:
                raise InvalidInput(
                    f"part {place.name!r} of the mixture has a limit of {place.limit} sessions, "
                    f"which {processes} processes can't share"
                )
        self.draws = self._source.draws
        """What a mixture draws; None without one."""
        self.capacity = self._source.capacity
        """How many groups have been begun, and may be."""
        self._make_policy = make_policy
        self._out = Path(out)
        self._on_progress = on_progress or (lambda _: None)
        self._allow_changes = allow_changes
        self._launcher: Launcher = launcher or ProcessLauncher()
        self._launcher.check((spec, make_policy, make_handler, self.settings))
        self._environments = [place.spec for place in self.places.all.values()]
        self._changed = Signal()
        # A rule of admission bounds what is ready; otherwise a slow caller delays the processes.
        self._ready = ReadyGroups(
            self.settings.concurrency if self.settings.admission is None else None
        )
        self._queue = JobQueue(self._source, self._ready, self._changed, self.limits.deaths)
        self._pool = WorkerPool(
            self._launcher,
            Recipe(
                tuple({one.env_class.__module__ for one in self.places.all.values()}),
                spec,
                make_policy,
                self.settings,
                self._out,
                self._out,
                self.limits.stop,
                make_handler=make_handler,
                environ=tuple((environ or {}).items()),
            ),
            processes,
            self._environments,
            self._source.known,
            self.limits,
            self._queue,
            self._changed,
            self._report,
        )
        self._store: Store | None = None
        self._members: MemberReader | None = None
        self._supervisor = Supervisor("fleet")

    @property
    def deaths(self) -> int:
        """Number of processes that died and were replaced."""
        return self._pool.deaths

    @property
    def unclosed(self) -> int:
        """Number of processes that were killed because they did not close their sessions."""
        return self._pool.unclosed

    # Hooks for trainers -------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are alive."""
        return self._pool.pids

    async def set_version(self, version: int) -> None:
        """Record that the trainer's weights are now at ``version``, in every process.

        Like :meth:`pause` and :meth:`resume` it returns when all processes have confirmed it; one
        that does not within ``limits.answer`` seconds is killed and replaced.
        """
        if version < self.version:
            raise InvalidInput(f"policy version went back from {self.version} to {version}")
        self.version = self._queue.version = version
        if not self._supervisor.started:
            self.capacity.recover(version)
        await self._pool.set_version(version)
        self._changed.ring()

    async def pause(self) -> None:
        """Delay new policy calls; running ones continue, without counting the agents' time."""
        await self._pool.pause()

    async def resume(self) -> None:
        """Undo :meth:`pause`."""
        await self._pool.resume()

    def stop(self) -> None:
        """Start no further sessions; running ones continue, and their groups can be sealed."""
        if not self._queue.stopping:
            self._queue.stopping = True
            self._changed.ring()
            self._pool.stop()

    def abandon(self) -> None:
        """Let the processes close their sessions and end, and wait for them. Blocks.

        For a fleet in a thread at the exit of Python, when its event loop can't leave it any more:
        no thread can be started. Called by ``atexit``; the fleet is of no use afterwards.
        """
        self._queue.stopping = True
        self._pool.abandon()

    # The iterator -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        with contained():
            policy = self._make_policy()
        check_policy(policy)
        async with policy:
            self.places.check(policy)
            self._store = store = await asyncio.to_thread(Store, self._out)
            try:
                await without_writers(store, self.limits.stop)
                await self._source.claim(store, policy, self._allow_changes)
                await self._launcher.open(self._environments)
            except BaseException as error:
                await store.__aexit__(type(error), error, error.__traceback__)
                raise
        self._members = MemberReader(store)
        self._supervisor.start(self._supervise(store), self._changed.ring)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._store is not None
        assert self._members is not None
        try:
            await self._supervisor.cancel(self._pool.background)
            await self._launcher.close()
        finally:
            self._members.close()
            await self._store.__aexit__(kind, error, traceback)

    async def _supervise(self, store: Store) -> None:
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._queue.read(store))
                await self._pool.run()
                reader.cancel()
        await self._pool.tidy()
        self._queue.check()

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
        assert self._store is not None
        assert self._members is not None
        group = handled.group
        sealed = SealedGroup(group, await asyncio.to_thread(self._members.sessions, group))
        found = as_delivered(sealed, self.version, self.settings.max_staleness)
        if found.group is not group:  # its members left between sealing and delivery
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
        supervisor = self._supervisor.task
        while not self._ready and not supervisor.done():
            await self._changed.wait()
        if self._ready:
            self._changed.ring()  # there is room for another one
            return self._ready.take()
        await self._supervisor.result()
        return None

    def _report(self, event: Progress) -> None:
        self._queue.note(event)
        try:
            with contained():
                self._on_progress(event)
        except Exception:  # noqa: BLE001 - boundary: a callback
            _log.exception("on_progress failed for %s %s", event.kind, event.session or event.task)
