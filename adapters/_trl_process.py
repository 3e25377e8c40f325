"""A rollout worker in a process of its own, so that sessions and trainer don't share Python."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import multiprocessing
import pickle
import queue
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._trl_buffer import SampleBuffer
from trajgym.adapters._trl_child import Promise, serve
from trajgym.adapters._trl_errors import need_trl
from trajgym.adapters._trl_harvest import Tally
from trajgym.adapters._trl_settings import check_distribution, plain_settings
from trajgym.adapters._trl_versions import VersionClock, watch
from trajgym.adapters._trl_worker import RolloutWorker
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from trajgym.adapters._trl_health import Health
    from trajgym.envs import EnvSpec
    from trajgym.trajectory import Task

__all__ = ["MakeWorker", "RolloutProcess"]

_METRICS = 4096
"""Groups whose metrics can wait for a trainer that logs seldom; later ones are not logged."""
_GRACE = 15.0
"""Seconds that the process has to end after its worker stopped."""


class MakeWorker(Protocol):
    """Makes the worker, in its process; a function of a module, or a ``partial`` of one."""

    def __call__(self, *, versions: VersionClock) -> RolloutWorker:
        """Return a worker that has not been started.

        Args:
            versions: for the worker, and for its engine if that asks for versions.
        """
        ...


class RolloutProcess:
    """A :class:`RolloutWorker` in a process of its own, beside TRL's ``AsyncGRPOTrainer``.

    ::

        worker = RolloutProcess.for_vllm(args, spec, tasks, model=name, tokenizer=tok, store="run")

    and go on as with a :class:`RolloutWorker`. The process is spawned by :meth:`start`, sees no
    GPU, and ends with :meth:`stop` or with the trainer's process, however that ends. As with every
    spawned process, a script that trains does so under ``if __name__ == "__main__":``.

    Whether an update is under way stands in memory that both processes see, so the ranges of
    versions are as exact as with threads.

    Args:
        make: see :class:`MakeWorker`; it is pickled.
        temperature: the worker's, compared with the trainer's.
        max_staleness: the worker's, likewise.
        queue_maxsize: samples that wait on this side; the worker has a queue of its own.
        stop_seconds: deadline of :meth:`stop`; then the process is killed.

    Raises:
        InvalidInput: ``make`` can't be pickled.
        MissingExtra: TRL is not installed.
    """

    def __init__(
        self,
        make: MakeWorker,
        *,
        temperature: float = 1.0,
        max_staleness: int = 4,
        queue_maxsize: int = 128,
        stop_seconds: float = 180.0,
    ) -> None:
        need_trl()
        self._context = multiprocessing.get_context("spawn")
        cells: Any = self._context.RawArray(ctypes.c_longlong, 2)
        self._cells = cells
        self.versions = VersionClock(cells=cells)
        self.rollout_buffer = SampleBuffer(
            queue_maxsize, lambda: self.versions.version, max_staleness, self._wake
        )
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(_METRICS)
        self.updates: list[tuple[int, float]] = []
        """Versions and the Unix times (s) at which the trainer announced them."""
        self.temperature = temperature
        self.max_staleness = max_staleness
        self.discarded = 0
        """Samples that arrived while it stopped."""
        self._make = _pickled(make)
        self._stop_seconds = stop_seconds
        self._process: SpawnProcess | None = None
        self._control: Connection | None = None
        self._threads: list[threading.Thread] = []
        self._space = threading.Event()
        self._sending = threading.Lock()
        self._stopping = False
        self._failure = ""
        self._health: Health | None = None
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
        stop_seconds: float = 180.0,
        **options: Any,
    ) -> Self:
        """Return a worker for the vLLM server and the settings of an ``AsyncGRPOConfig``.

        Args:
            args: the trainer's ``AsyncGRPOConfig``.
            spec: the environment.
            tasks: repeated for ever.
            model: name under which the server knows the model.
            tokenizer: with a chat template.
            store: a run directory without sessions.
            stop_seconds: see the class.
            **options: more arguments of :meth:`RolloutWorker.for_vllm`.

        Raises:
            InvalidInput: ``args`` cuts or bends the distribution (``top_p`` and the like), or an
                argument can't be sent to another process.
            UnknownEnv: nothing has the spec's id.
        """
        check_distribution(args)
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
        return Tally() if self._health is None else self._health.tally

    @property
    def pid(self) -> int | None:
        """The process's id, after :meth:`start`."""
        return None if self._process is None else self._process.pid

    # TRL's RolloutWorkerProtocol ------------------------------------------------------------

    def start(self) -> None:
        """Spawn the process; it begins to run sessions when it has imported what it needs.

        Raises:
            RolloutFailed: it was started before.
        """
        if self._process is not None:
            raise RolloutFailed("a rollout process can be started once; make another one")
        samples, their_samples = self._context.Pipe(duplex=False)
        self._control, their_control = self._context.Pipe()
        promise = Promise(self.temperature, self.max_staleness)
        self._process = self._context.Process(
            target=serve,
            args=(self._make, self._cells, promise, their_samples, their_control),
            name="trajgym-trl",
        )
        self._started_at = time.monotonic()
        atexit.register(self.stop)
        self._process.start()
        # Only the process holds these now: when it dies, reading here ends.
        their_samples.close()
        their_control.close()
        for work, pipe in ((self._receive, samples), (self._listen, self._control)):
            thread = threading.Thread(
                target=work, args=(pipe,), name=f"trajgym-trl{work.__name__}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Cancel the sessions under way, close everything, and end the process. Idempotent.

        Raises:
            RolloutFailed: it did not end in time and was killed.
        """
        self._stopping = True
        self._space.set()
        atexit.unregister(self.stop)
        process = self._process
        if process is None:
            return
        self._send("stop")
        process.join(self._stop_seconds + _GRACE)
        killed = process.is_alive()
        if killed:
            process.kill()
            process.join(_GRACE)
        for thread in self._threads:
            thread.join(_GRACE)
        if self._control is not None:
            self._control.close()
            self._control = None
        if killed:
            raise RolloutFailed(
                f"the rollout process did not stop within {self._stop_seconds:g} s and was killed: "
                "an environment that does not close holds it up. Sandboxes that it left go with "
                "the next run, or with: trajgym sandboxes clean",
            )

    def update_model_version(self, model_version: int) -> None:
        """Learn that the server holds these weights now."""
        self.versions.announce(model_version)
        self.updates.append((model_version, time.time()))
        self._send("version", model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if no more samples can be expected.

        Args:
            stale_after_s: seconds without a sign of life, or in which sealed groups gave nothing.

        Raises:
            RolloutFailed: the process died, does not start, or its worker ended, hangs or gives
                nothing.
        """
        process = self._process
        if self._failure:
            raise RolloutFailed(f"the rollout process failed: {self._failure}")
        if process is None:
            raise RolloutFailed("the rollout process does not run")
        if self._health is not None and self._health.error:
            self._health.check(stale_after_s)
        if not process.is_alive():
            raise RolloutFailed(f"the rollout process {_end(process.exitcode)}")
        if self._health is not None:
            self._health.check(stale_after_s)
        elif (waited := time.monotonic() - self._started_at) > stale_after_s:
            raise RolloutFailed(f"the rollout process has not begun to work for {waited:.0f} s")

    # Word to and from the process -----------------------------------------------------------

    def pause(self) -> None:
        """Let no turn begin, and stop the agents' clocks, until :meth:`resume`."""
        self._send("pause")

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._send("resume")

    def _send(self, *message: Any) -> None:
        with self._sending:
            if self._control is not None:
                with contextlib.suppress(OSError):  # it died; check_health says so
                    self._control.send(message)

    def _listen(self, control: Connection) -> None:
        for kind, value in _messages(control):
            if kind == "health":
                self._health = value
            elif kind == "failed":
                self._failure = value
            else:
                value["trajgym/stale_samples"] += float(self.rollout_buffer.stale)
                with contextlib.suppress(queue.Full):
                    self.metrics_queue.put_nowait(value)

    def _receive(self, samples: Connection) -> None:
        for batch in _messages(samples):
            for pair in batch:
                self._put(pair)
        samples.close()

    def _put(self, pair: tuple[str, Any]) -> None:
        while not self._stopping:
            self._space.clear()
            try:
                self.rollout_buffer.put_nowait(pair)
            except queue.Full:
                if not self._stopping:
                    # No deadline: a trainer may take its time, and stop() ends this.
                    self._space.wait()
            else:
                return
        self.discarded += 1

    def _wake(self) -> None:
        self._space.set()


def _vllm_worker(module: str, *arguments: Any, **options: Any) -> RolloutWorker:
    if module != "__main__":  # spawning has imported that
        importlib.import_module(module)
    return RolloutWorker.for_vllm(*arguments, **options)


def _pickled(make: MakeWorker) -> bytes:
    try:
        return pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidInput(
            f"the worker can't be sent to a process of its own: {error}. Give functions and "
            "classes of modules (no lambdas), a list of tasks, and the store's path",
        ) from error


def _messages(pipe: Connection) -> Any:
    """Yield what arrives until the other side is gone."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
