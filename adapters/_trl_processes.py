"""Rollout workers in processes of their own, so that sessions and trainer don't share Python."""

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._trl_buffer import SampleBuffer
from trajgym.adapters._trl_child import Promise
from trajgym.adapters._trl_errors import need_trl
from trajgym.adapters._trl_harvest import Tally
from trajgym.adapters._trl_health import Health
from trajgym.adapters._trl_settings import check_distribution, plain_settings, sessions_at_once
from trajgym.adapters._trl_shard import Shard
from trajgym.adapters._trl_spawned import Spawned
from trajgym.adapters._trl_versions import VersionClock, watch
from trajgym.adapters._trl_worker import RolloutWorker
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from trajgym.envs import EnvSpec
    from trajgym.trajectory import Task

__all__ = ["MakeWorker", "RolloutProcesses"]

_METRICS = 4096
"""Groups whose metrics can wait for a trainer that logs seldom; later ones are not logged."""
_GRACE = 15.0
"""Seconds that a process has to end after its worker stopped."""


class MakeWorker(Protocol):
    """Makes a worker, in its process; a function of a module, or a ``partial`` of one."""

    def __call__(self, *, versions: VersionClock, shard: Shard) -> RolloutWorker:
        """Return a worker that has not been started.

        Args:
            versions: for the worker, and for its engine if that asks for versions.
            shard: which of the workers it is: it plays tasks of its own and writes a file of its
                own.
        """
        ...


class RolloutProcesses:
    """:class:`RolloutWorker` in processes of their own, beside TRL's ``AsyncGRPOTrainer``.

    ::

        worker = RolloutProcesses.for_vllm(
            args, spec, tasks, model=name, tokenizer=tok, store="run", processes=4
        )

    and go on as with a :class:`RolloutWorker`. One worker has one event loop, which drives some
    hundreds of turns a second; several share the tasks and the sessions at once, and write one run
    together.

    The processes are spawned by :meth:`start`, see no GPU, and end with :meth:`stop` or with the
    trainer's process, however that ends. As with every spawned process, a script that trains does
    so under ``if __name__ == "__main__":``.

    Whether an update is under way stands in memory that all of them see, so the ranges of versions
    are as exact as with a thread.

    Args:
        make: see :class:`MakeWorker`; it is pickled.
        processes: how many.
        temperature: the workers', compared with the trainer's.
        max_staleness: the workers', likewise.
        queue_maxsize: samples that wait on this side; each worker has a queue of its own.
        stop_seconds: deadline of :meth:`stop`; then they are killed.

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
            raise InvalidInput(f"processes={processes}: there must be one at least")
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
        """Samples that arrived while it stopped."""
        self._make = _pickled(make)
        self._stop_seconds = stop_seconds
        self._children: list[Spawned] = []
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
        **options: Any,
    ) -> Self:
        """Return workers for the vLLM server and the settings of an ``AsyncGRPOConfig``.

        Args:
            args: the trainer's ``AsyncGRPOConfig``.
            spec: the environment.
            tasks: repeated for ever; at least as many as processes.
            model: name under which the server knows the model.
            tokenizer: with a chat template.
            store: a run directory without sessions.
            processes: how many share the tasks and the sessions at once.
            stop_seconds: see the class.
            **options: more arguments of :meth:`RolloutWorker.for_vllm`; ``concurrency`` and
                ``queue_maxsize`` are those of all together.

        Raises:
            InvalidInput: ``args`` cuts or bends the distribution (``top_p`` and the like), an
                argument can't be sent to another process, or the run directory is in use.
            UnknownEnv: nothing has the spec's id.
        """
        check_distribution(args)
        Shard(0, processes).tasks(tasks)
        if any(Path(store).glob("*.sqlite")):
            raise InvalidInput(
                f"{store}: holds a run already; policy versions begin anew with each training "
                "process, so give each a directory of its own",
            )
        options = {
            "concurrency": sessions_at_once(args),
            "queue_maxsize": args.queue_maxsize,
            **options,
        }
        make = partial(
            _vllm_worker,
            # Importing it registers the environment over there, too.
            spec.resolve().__module__,
            plain_settings(args),
            spec,
            tasks,
            model=model,
            tokenizer=tokenizer,
            store=store,
            stop_seconds=stop_seconds,
            **options,
        )
        return cls(
            make,
            processes=processes,
            temperature=options.get("temperature", args.temperature),
            max_staleness=options.get("max_staleness", args.max_staleness),
            stop_seconds=stop_seconds,
        )

    def attach(self, trainer: Any) -> None:
        """Check that the trainer fits, and learn from it when weight updates begin.

        See :meth:`RolloutWorker.attach`.

        Raises:
            InvalidInput: the two don't fit.
        """
        watch(self, trainer)

    @property
    def tally(self) -> Tally:
        """What became of the sessions, at most a second ago; exact after :meth:`stop`."""
        return Tally.of([child.health.tally for child in self._children if child.health])

    @property
    def pids(self) -> list[int]:
        """The processes' ids, after :meth:`start`."""
        return [child.process.pid for child in self._children if child.process.pid]

    # TRL's RolloutWorkerProtocol ------------------------------------------------------------

    def start(self) -> None:
        """Spawn the processes; they begin to run sessions when they have imported what they need.

        Raises:
            RolloutFailed: they were started or stopped before.
        """
        if self._children or self._stopping:
            raise RolloutFailed("rollout processes can be started once; make others")
        promise = Promise(self.temperature, self.max_staleness)
        self._started_at = time.monotonic()
        atexit.register(self.stop)
        for index in range(self.processes):
            self._children.append(
                Spawned(
                    self._context,
                    self._make,
                    self._cells,
                    promise,
                    Shard(index, self.processes),
                    self._put,
                    self._measured,
                ),
            )

    def stop(self) -> None:
        """Cancel the sessions under way, close everything, and end the processes. Idempotent.

        Raises:
            RolloutFailed: one did not end in time and was killed.
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
                f"{self._stop_seconds:g} s and were killed: an environment that does not close "
                "holds them up. Sandboxes that they left go with the next run, or with: trajgym "
                "sandboxes clean",
            )

    def update_model_version(self, model_version: int) -> None:
        """Learn that the server holds these weights now."""
        self.versions.announce(model_version)
        self.updates.append((model_version, time.time()))
        self._tell("version", model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if no more samples can be expected.

        Args:
            stale_after_s: seconds without a sign of life, or in which sealed groups gave nothing.

        Raises:
            RolloutFailed: a process died or does not start, or its worker ended, hangs, or gives
                nothing.
        """
        if not self._children:
            raise RolloutFailed("the rollout processes do not run")
        for child in self._children:
            if child.failure:
                raise RolloutFailed(f"a rollout process failed: {child.failure}")
        told = [child.health for child in self._children if child.health]
        for one in told:
            if one.error:
                one.check(stale_after_s)
        for child in self._children:
            if end := child.end:
                raise RolloutFailed(f"a rollout process {end}")
        if len(told) == len(self._children):
            Health.of(told).check(stale_after_s)
        elif (waited := time.monotonic() - self._started_at) > stale_after_s:
            raise RolloutFailed(f"a rollout process has not begun to work for {waited:.0f} s")

    # Word to and from the processes ---------------------------------------------------------

    def pause(self) -> None:
        """Let no turn begin, and stop the agents' clocks, until :meth:`resume`."""
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
    concurrency: int,
    queue_maxsize: int,
    **options: Any,
) -> RolloutWorker:
    if module != "__main__":  # spawning has imported that
        importlib.import_module(module)
    return RolloutWorker.for_vllm(
        args,
        spec,
        shard.tasks(tasks),
        versions=versions,
        store=shard.store(store),
        concurrency=shard.part(concurrency),
        queue_maxsize=shard.part(queue_maxsize),
        **options,
    )


def _pickled(make: MakeWorker) -> bytes:
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the worker can't be sent to a process of its own: {error}. Give functions and "
            "classes of modules (no lambdas), a list of tasks, and the store's path",
        ) from error
