"""Sessions in separate processes, so that they and the trainer don't share one GIL."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import importlib
import logging
import multiprocessing
import pickle
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._rollouts import has_sessions
from trajgym.adapters.trl._fleet_parts import Maker, process_environ, run_directory
from trajgym.adapters.trl._group_samples import Tally
from trajgym.adapters.trl._sample_worker import SampleWorker
from trajgym.adapters.trl._settings import check_distribution, plain_settings, split_settings
from trajgym.adapters.trl._versions import VersionClock
from trajgym.adapters.trl._worker import RolloutWorker
from trajgym.rollout.fleet import Fleet, FleetLimits, Shard
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from contextlib import AsyncExitStack

    from trajgym.adapters.trl._group_samples import GroupSamples
    from trajgym.envs import EnvSpec
    from trajgym.rollout import RunSettings
    from trajgym.trajectory import Task

__all__ = ["MakeWorker", "RolloutProcesses"]

_log = logging.getLogger(__name__)
_GRACE = 30.0
"""Seconds for the end of the fleet's loop after its processes have stopped or were killed."""


class MakeWorker(Protocol):
    """Makes a worker: a module-level function, or a ``partial`` of one.

    It is called in the trainer's process, where ``shard`` is the whole, and in each rollout
    process. Of the first worker, the tasks, the settings and the path of the store are used; of the
    others, the engine, the renderer, the deriver and the annotators. None of them is started.
    """

    def __call__(self, *, versions: VersionClock, shard: Shard) -> RolloutWorker:
        """Return a worker that has not been started.

        Args:
            versions: the clock for the worker, and for its engine if it takes one.
            shard: index and number of the processes. ``shard.tasks``, ``shard.part`` and
                ``shard.store`` may be used as they are: of the whole they return everything.
        """
        ...


class RolloutProcesses(SampleWorker):
    """A :class:`RolloutWorker` whose sessions run in processes of their own.

    ::

        worker = RolloutProcesses.for_vllm(
            args, spec, tasks, model=name, tokenizer=tok, store="run", processes=4
        )

    and continue as with a :class:`RolloutWorker`. One worker has one event loop, which runs some
    hundreds of turns a second. The processes are a :class:`trajgym.rollout.fleet.Fleet`: each takes
    the next task when it has room, makes the samples of the groups that it has sealed, and writes
    a file of one run. One that dies or gives no sign of life is replaced, its unfinished sessions
    are run again, and no session is counted or passed on twice.

    The processes are spawned after :meth:`start`, have no access to a GPU, and exit on :meth:`stop`
    or when the trainer's process exits or dies. As always with spawned processes, the script must
    train under ``if __name__ == "__main__":``.

    The state of a weight update is in shared memory, so the recorded ranges of versions are as
    exact as with a thread.

    Args:
        make: see :class:`MakeWorker`; it is pickled.
        processes: number of processes.
        temperature: the workers' temperature, compared with the trainer's.
        max_staleness: the workers' bound, compared with the trainer's.
        queue_maxsize: most samples queued.
        stop_seconds: deadline of :meth:`stop`, after which processes are killed (s).
        limits: other deadlines of the processes; its ``stop`` is not used.

    Raises:
        InvalidInput: ``make`` can't be pickled.
        MissingExtra: TRL is not installed.
    """

    def __init__(
        self,
        make: MakeWorker,
        *,
        processes: int = 1,
        temperature: float = 1.0,
        max_staleness: int = 4,
        queue_maxsize: int = 128,
        stop_seconds: float = 180.0,
        limits: FleetLimits | None = None,
    ) -> None:
        if processes < 1:
            raise InvalidInput(f"processes is {processes}; it must be at least 1")
        cells: Any = multiprocessing.get_context("spawn").RawArray(ctypes.c_longlong, 2)
        super().__init__(
            versions=VersionClock(cells=cells),
            temperature=temperature,
            max_staleness=max_staleness,
            queue_maxsize=queue_maxsize,
            stop_seconds=stop_seconds + _GRACE,
        )
        self.processes = processes
        self._make = make
        self._maker = Maker(_pickled(make), cells)
        self._limits = replace(limits or FleetLimits(), stop=stop_seconds)
        self._tally = Tally()
        self._fleet: Fleet | None = None
        self._orders: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._paused = False

    @classmethod
    def for_vllm(
        cls,
        args: Any,
        spec: EnvSpec,
        tasks: Sequence[Task],
        *,
        model: str,
        tokenizer: Any,
        store: str | os.PathLike[str],
        processes: int = 1,
        stop_seconds: float = 180.0,
        limits: FleetLimits | None = None,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Self:
        """Return workers for the vLLM server and the settings of an ``AsyncGRPOConfig``.

        Args:
            args: the trainer's ``AsyncGRPOConfig``.
            spec: the environment.
            tasks: repeated endlessly.
            model: the model's name on the server.
            tokenizer: with a chat template.
            store: a run directory without sessions.
            processes: number of processes.
            stop_seconds: see the class.
            limits: see the class.
            settings: how sessions are run, by default taken from ``args``; ``concurrency`` is the
                total of all processes.
            **options: further arguments of :meth:`RolloutWorker.for_vllm`, and settings by name.

        Raises:
            InvalidInput: ``args`` changes the sampling distribution (``top_p`` and others), an
                argument or setting is unknown or invalid, an argument can't be pickled, or the run
                directory is in use.
            UnknownEnv: no environment has the spec's id.
        """
        check_distribution(args)
        if not tasks:
            raise InvalidInput("there are no tasks")
        if any(Path(store).glob("*.sqlite")):
            raise InvalidInput(
                f"{store} already contains a run; policy versions start at 0 in each training "
                "process, so use a separate directory for each",
            )
        run, more = split_settings(args, settings, options)
        _refuse_unknown(more)
        make = partial(
            _vllm_worker,
            # Importing this module registers the environment in the other process.
            spec.resolve().__module__,
            plain_settings(args),
            spec,
            model=model,
            tokenizer=tokenizer,
            store=store,
            settings=run,
            **more,
        )
        made = cls(
            partial(make, tasks=tasks[:1]),  # in the processes, which get theirs from the fleet
            processes=processes,
            temperature=more.get("temperature", args.temperature),
            max_staleness=args.max_staleness if run.max_staleness is None else run.max_staleness,
            queue_maxsize=more.get("queue_maxsize", args.queue_maxsize),
            stop_seconds=stop_seconds,
            limits=limits,
        )
        made._make = partial(make, tasks=tasks)
        return made

    @property
    def tally(self) -> Tally:
        """Counts over the groups whose samples have arrived."""
        return self._tally

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are alive."""
        return [] if self._fleet is None else self._fleet.pids

    @property
    def deaths(self) -> int:
        """Number of processes that died and were replaced."""
        return 0 if self._fleet is None else self._fleet.deaths

    @property
    def discarded(self) -> int:
        """Number of samples that arrived and were not queued because of :meth:`stop`."""
        return self._tally.samples - self._queued if self._stopping else 0

    # TRL's RolloutWorkerProtocol ------------------------------------------------------------

    def start(self) -> None:
        """Spawn the processes, which start to run sessions after their imports.

        Raises:
            RolloutFailed: they were started or stopped before.
        """
        super().start()
        atexit.register(self._leave)

    def stop(self) -> None:
        """Cancel running sessions, close everything and end the processes. Idempotent.

        Raises:
            RolloutFailed: a process did not exit in time and was killed.
        """
        atexit.unregister(self._leave)
        fleet = self._fleet
        before = 0 if fleet is None else fleet.unclosed
        super().stop()
        if fleet is not None and (killed := fleet.unclosed - before):
            raise RolloutFailed(
                f"{killed} rollout processes did not stop within {self._limits.stop:g} s and were "
                "killed, probably because an environment did not close. The next run removes "
                "sandboxes that they left; so does: trajgym sandboxes clean",
            )

    def update_model_version(self, model_version: int) -> None:
        """Record that the server has the weights of this version."""
        super().update_model_version(model_version)
        if self._maker.worker is not None:  # its tasks may wait for versions
            self._maker.worker.update_model_version(model_version)

    def pause(self) -> None:
        """Start no turn, and stop the sessions' clocks, until :meth:`resume`.

        All processes are told at once; one that does not confirm it in time is replaced.
        """
        self._paused = True
        self._in_loop(partial(self._tell, Fleet.pause))

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._paused = False
        self._in_loop(partial(self._tell, Fleet.resume))

    def _set_version(self) -> None:
        self._tell(Fleet.set_version, self.versions.version)

    def _tell(self, command: Callable[..., Coroutine[Any, Any, None]], *values: int) -> None:
        """Give the fleet a command, in the order of the calls; it is confirmed later."""
        if self._fleet is not None:
            task = asyncio.ensure_future(command(self._fleet, *values))
            self._orders.add(task)
            task.add_done_callback(self._orders.discard)

    # The thread -----------------------------------------------------------------------------

    async def _work(self, stack: AsyncExitStack) -> None:
        del stack
        worker = await asyncio.to_thread(self._made)
        out = run_directory(worker.store)
        async with await asyncio.to_thread(Store, out) as store:
            if await asyncio.to_thread(has_sessions, store):
                raise InvalidInput(
                    f"{out} already contains sessions; policy versions start at 0 in each "
                    "training process, so use a separate directory for each",
                )
        fleet = Fleet(
            worker.spec,
            worker.tasks,
            self._maker.policy,
            out,
            processes=self.processes,
            settings=worker.settings,
            limits=self._limits,
            make_handler=self._maker.handler,
            environ=process_environ(),
        )
        self._fleet = fleet  # first: updates must not be lost meanwhile
        await fleet.set_version(self.versions.version)
        if self._paused:
            await fleet.pause()
        try:
            async with fleet:
                async for handled in fleet.handled():
                    await self._take(handled.result, fleet)
        except Exception:  # boundary: at the exit of Python, whatever needs a thread fails
            if not self._leaving:
                raise
            _log.debug("the exit of Python ended the fleet", exc_info=True)

    def _made(self) -> RolloutWorker:
        """Make the worker whose tasks, settings and store are used; blocks."""
        worker = self._make(versions=self.versions, shard=Shard(0, 1))
        for name in ("temperature", "max_staleness"):
            mine, found = getattr(self, name), getattr(worker, name)
            if mine != found:
                raise InvalidInput(
                    f"the worker has {name}={found}, but RolloutProcesses was made with "
                    f"{name}={mine}"
                )
        if worker.versions is not self.versions:
            raise InvalidInput("the worker has its own clock: make it with versions=versions")
        self._maker.worker = worker
        return worker

    async def _take(self, made: GroupSamples, fleet: Fleet) -> None:
        self._tally = self._tally.plus(made.tally)
        made.metrics["trajgym/process_deaths"] = float(fleet.deaths)
        await self._put_all(made)

    def _leave(self) -> None:
        """End the processes at the exit of Python, when the event loop can't do so any more."""
        self._stopping = self._leaving = True
        if self._fleet is not None:
            self._fleet.abandon()


def _vllm_worker(
    module: str,
    args: Any,
    spec: EnvSpec,
    *,
    tasks: Sequence[Task],
    versions: VersionClock,
    shard: Shard,
    store: str | os.PathLike[str],
    **options: Any,
) -> RolloutWorker:
    if module != "__main__":  # which spawning imports
        importlib.import_module(module)
    return RolloutWorker.for_vllm(
        args, spec, tasks, versions=versions, store=shard.store(store), **options
    )


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise for unknown options before a process is spawned."""
    known = {*signature(RolloutWorker).parameters, *signature(RolloutWorker.for_vllm).parameters}
    if unknown := sorted(set(options) - known):
        raise InvalidInput(f"RolloutWorker has no argument {unknown[0]!r}; it has {sorted(known)}")


def _pickled(make: MakeWorker) -> bytes:
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the worker can't be pickled for its process: {error}. Use module-level functions "
            "and classes (no lambdas), a list of tasks, and the store's path",
        ) from error
