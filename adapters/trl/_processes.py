"""Rollout workers in separate processes, so that sessions and trainer don't share one GIL."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import multiprocessing
import pickle
import queue
import threading
import time
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters.trl._buffer import SampleBuffer
from trajgym.adapters.trl._child import Expected
from trajgym.adapters.trl._errors import need_trl
from trajgym.adapters.trl._group_samples import Tally
from trajgym.adapters.trl._health import Health
from trajgym.adapters.trl._settings import check_distribution, plain_settings, split_settings
from trajgym.adapters.trl._versions import VersionClock, watch
from trajgym.adapters.trl._worker import RolloutWorker
from trajgym.adapters.trl._worker_process import WorkerProcess
from trajgym.rollout.fleet import Shard
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from trajgym.envs import EnvSpec
    from trajgym.rollout import RunSettings
    from trajgym.trajectory import Task

__all__ = ["MakeWorker", "RolloutProcesses"]

_METRICS = 4096
"""Most groups with unread metrics; further metrics are discarded."""
_GRACE = 15.0
"""Seconds for a process to exit after its worker stopped."""


class MakeWorker(Protocol):
    """Makes a worker in its process: a module-level function, or a ``partial`` of one."""

    def __call__(self, *, versions: VersionClock, shard: Shard) -> RolloutWorker:
        """Return a worker that has not been started.

        Args:
            versions: the clock for the worker, and for its engine if it takes one.
            shard: index and number of the workers, to select the worker's tasks and file.
        """
        ...


class RolloutProcesses:
    """Several :class:`RolloutWorker` in processes of their own, for TRL's ``AsyncGRPOTrainer``.

    ::

        worker = RolloutProcesses.for_vllm(
            args, spec, tasks, model=name, tokenizer=tok, store="run", processes=4
        )

    and continue as with a :class:`RolloutWorker`. One worker has one event loop, which runs some
    hundreds of turns a second. Several workers divide the tasks and the concurrent sessions among
    them, and write one run.

    The processes are spawned by :meth:`start`, have no access to a GPU, and exit on :meth:`stop` or
    when the trainer's process exits or dies. As always with spawned processes, the script must
    train under ``if __name__ == "__main__":``.

    The state of a weight update is in shared memory, so the recorded ranges of versions are as
    exact as with a thread.

    Args:
        make: see :class:`MakeWorker`; it is pickled.
        processes: number of processes.
        temperature: the workers' temperature, compared with the trainer's.
        max_staleness: the workers' bound, compared with the trainer's.
        queue_maxsize: most samples queued in the trainer's process; each worker has its own queue.
        stop_seconds: deadline of :meth:`stop`, after which processes are killed (s).

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
    ) -> None:
        need_trl()
        if processes < 1:
            raise InvalidInput(f"processes is {processes}; it must be at least 1")
        self._context = multiprocessing.get_context("spawn")
        cells: Any = self._context.RawArray(ctypes.c_longlong, 2)
        self._cells = cells
        self.versions = VersionClock(cells=cells)
        self.rollout_buffer = SampleBuffer(
            queue_maxsize, lambda: self.versions.version, max_staleness
        )
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(_METRICS)
        self.updates: list[tuple[int, float]] = []
        """Versions and the Unix times (s) at which the trainer announced them."""
        self.temperature = temperature
        self.max_staleness = max_staleness
        self.processes = processes
        self.discarded = 0
        """Number of samples that arrived during :meth:`stop`."""
        self._make = _pickled(make)
        self._stop_seconds = stop_seconds
        self._children: list[WorkerProcess] = []
        self._counting = threading.Lock()
        self._stopping = False
        self._started_at = 0.0

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
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Self:
        """Return workers for the vLLM server and the settings of an ``AsyncGRPOConfig``.

        Args:
            args: the trainer's ``AsyncGRPOConfig``.
            spec: the environment.
            tasks: repeated endlessly; at least as many as processes.
            model: the model's name on the server.
            tokenizer: with a chat template.
            store: a run directory without sessions.
            processes: number of processes.
            stop_seconds: see the class.
            settings: how sessions are run, by default taken from ``args``; ``concurrency`` is the
                total of all processes.
            **options: further arguments of :meth:`RolloutWorker.for_vllm`, and settings by name;
                ``queue_maxsize`` is the total of all processes.

        Raises:
            InvalidInput: ``args`` changes the sampling distribution (``top_p`` and others), an
                argument or setting is unknown or invalid, an argument can't be pickled, or the run
                directory is in use.
            UnknownEnv: no environment has the spec's id.
        """
        check_distribution(args)
        Shard(0, processes).tasks(tasks)
        if any(Path(store).glob("*.sqlite")):
            raise InvalidInput(
                f"{store} already contains a run; policy versions start at 0 in each training "
                "process, so use a separate directory for each",
            )
        run, more = split_settings(args, settings, options)
        _refuse_unknown(more)
        more = {"queue_maxsize": args.queue_maxsize, **more}
        make = partial(
            _vllm_worker,
            # Importing this module registers the environment in the other process.
            spec.resolve().__module__,
            plain_settings(args),
            spec,
            tasks,
            model=model,
            tokenizer=tokenizer,
            store=store,
            stop_seconds=stop_seconds,
            settings=run,
            **more,
        )
        return cls(
            make,
            processes=processes,
            temperature=more.get("temperature", args.temperature),
            max_staleness=args.max_staleness if run.max_staleness is None else run.max_staleness,
            stop_seconds=stop_seconds,
        )

    def attach(self, trainer: Any) -> None:
        """Check the trainer's settings and subscribe to its weight updates.

        See :meth:`RolloutWorker.attach`.

        Raises:
            InvalidInput: the trainer's settings differ from the workers'.
        """
        watch(self, trainer)

    @property
    def tally(self) -> Tally:
        """Counts of sessions, at most a second old; final after :meth:`stop`."""
        return Tally.of([child.health.tally for child in self._children if child.health])

    @property
    def pids(self) -> list[int]:
        """Process ids, after :meth:`start`."""
        return [child.process.pid for child in self._children if child.process.pid]

    # TRL's RolloutWorkerProtocol ------------------------------------------------------------

    def start(self) -> None:
        """Spawn the processes, which start to run sessions after their imports.

        Raises:
            RolloutFailed: they were started or stopped before.
        """
        if self._children or self._stopping:
            raise RolloutFailed("rollout processes can be started only once; create a new object")
        expected = Expected(self.temperature, self.max_staleness)
        self._started_at = time.monotonic()
        atexit.register(self.stop)
        for index in range(self.processes):
            self._children.append(
                WorkerProcess(
                    self._context,
                    self._make,
                    self._cells,
                    expected,
                    Shard(index, self.processes),
                    self._put,
                    self._measured,
                ),
            )

    def stop(self) -> None:
        """Cancel running sessions, close everything and end the processes. Idempotent.

        Raises:
            RolloutFailed: a process did not exit in time and was killed.
        """
        atexit.unregister(self.stop)
        if self._stopping:
            return
        self._stopping = True
        self.rollout_buffer.close()
        self._tell("stop")
        ends = time.monotonic() + self._stop_seconds + _GRACE
        joined = [child.join(max(0.0, ends - time.monotonic())) for child in self._children]
        if not all(joined):
            raise RolloutFailed(
                f"{joined.count(False)} rollout processes did not stop within "
                f"{self._stop_seconds:g} s and were killed, probably because an environment did "
                "not close. The next run removes sandboxes that they left; so does: trajgym "
                "sandboxes clean",
            )

    def update_model_version(self, model_version: int) -> None:
        """Record that the server has the weights of this version."""
        self.versions.announce(model_version)
        self.updates.append((model_version, time.time()))
        self._tell("version", model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if no more samples can be expected.

        Args:
            stale_after_s: most seconds without an iteration of an event loop, or without a
                sample although groups were sealed.

        Raises:
            RolloutFailed: a process exited or does not start, or its worker ended, hangs, or
                produces no samples.
        """
        if not self._children:
            raise RolloutFailed("the rollout processes are not running")
        for child in self._children:
            if child.failure:
                raise RolloutFailed(f"a rollout process failed: {child.failure}")
        known = [child.health for child in self._children if child.health]
        for one in known:
            if one.error:
                one.check(stale_after_s)
        for child in self._children:
            if end := child.end:
                raise RolloutFailed(f"a rollout process {end}")
        if len(known) == len(self._children):
            Health.of(known).check(stale_after_s)
        elif (waited := time.monotonic() - self._started_at) > stale_after_s:
            raise RolloutFailed(f"a rollout process has not started to work after {waited:.0f} s")

    # Messages to and from the processes ---------------------------------------------------------

    def pause(self) -> None:
        """Start no turn, and stop the sessions' clocks, until :meth:`resume`."""
        self._tell("pause")

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._tell("resume")

    def _tell(self, *message: Any) -> None:
        for child in self._children:
            child.send(*message)

    def _measured(self, metrics: dict[str, Any]) -> None:
        metrics["trajgym/stale_samples"] += float(self.rollout_buffer.stale)
        with contextlib.suppress(queue.Full):
            self.metrics_queue.put_nowait(metrics)

    def _put(self, pair: tuple[str, Any]) -> None:
        if not self.rollout_buffer.put_pair(pair):
            with self._counting:
                self.discarded += 1


def _vllm_worker(
    module: str,
    args: Any,
    spec: EnvSpec,
    tasks: Sequence[Task],
    *,
    versions: VersionClock,
    shard: Shard,
    store: str | os.PathLike[str],
    settings: RunSettings,
    queue_maxsize: int,
    **options: Any,
) -> RolloutWorker:
    if module != "__main__":  # which spawning imports
        importlib.import_module(module)
    return RolloutWorker.for_vllm(
        args,
        spec,
        shard.tasks(tasks),
        versions=versions,
        store=shard.store(store),
        settings=replace(settings, concurrency=shard.part(settings.concurrency)),
        queue_maxsize=shard.part(queue_maxsize),
        **options,
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
