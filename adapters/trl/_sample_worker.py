"""The part of a worker that TRL's asynchronous trainer sees: a queue of samples, and health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters.trl._buffer import SampleBuffer
from trajgym.adapters.trl._errors import need_trl
from trajgym.adapters.trl._health import Health
from trajgym.adapters.trl._versions import VersionClock, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.adapters.trl._group_samples import GroupSamples, Tally

__all__ = ["SampleWorker"]

_log = logging.getLogger(__name__)
_METRICS = 4096
"""Most groups with unread metrics; further metrics are discarded."""
_BEAT = 0.5
"""Seconds between heartbeats of the event loop."""


class SampleWorker(ABC):
    """Makes samples of sealed groups in a thread of its own, and puts them into TRL's queue.

    Args:
        versions: the clock of the engine.
        temperature: of sampling; the trainer's must be the same.
        max_staleness: most versions that a sample may be behind when it is taken.
        queue_maxsize: most samples that wait for the trainer.
        stop_seconds: deadline of :meth:`stop` (s).
    """

    def __init__(
        self,
        *,
        versions: VersionClock | None,
        temperature: float,
        max_staleness: int,
        queue_maxsize: int,
        stop_seconds: float,
    ) -> None:
        need_trl()
        self.max_staleness = max_staleness
        self.versions = versions or VersionClock()
        self.rollout_buffer = SampleBuffer(
            queue_maxsize, lambda: self.versions.version, self.max_staleness, self._wake
        )
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue(_METRICS)
        self.updates: list[tuple[int, float]] = []
        """Versions and the Unix times (s) at which the trainer announced them."""
        self.temperature = temperature
        self._queued = 0
        """Number of samples that were put into the queue."""
        self._stop_seconds = stop_seconds
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._space = asyncio.Event()
        self._ready = threading.Event()
        self._stopping = False
        self._exhausted = False
        self._error: BaseException | None = None
        self._beat_at = self._sample_at = time.monotonic()

    def attach(self, trainer: Any) -> None:
        """Check the trainer's settings and subscribe to its weight updates.

        Without this call the start of updates is unknown: tokens then have a range of two versions,
        and the time of an update counts against the sessions' deadlines.

        Args:
            trainer: an ``AsyncGRPOTrainer`` with this worker.

        Raises:
            InvalidInput: temperature or ``max_staleness`` differ, or LoRA adapters are served
                under separate names.
        """
        watch(self, trainer)

    @property
    @abstractmethod
    def tally(self) -> Tally:
        """Counts of sessions up to now."""

    # TRL's RolloutWorkerProtocol ------------------------------------------------------------

    def start(self) -> None:
        """Start to run sessions.

        Raises:
            RolloutFailed: the worker was started before.
        """
        if self._thread is not None or self._stopping:
            raise RolloutFailed("a rollout worker can be started only once; create a new one")
        self._beat_at = self._sample_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="trajgym-trl", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel running sessions, close everything and end the thread. Idempotent.

        Raises:
            RolloutFailed: the thread did not end in time.
        """
        self._stopping = True
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._ready.wait(self._stop_seconds)
        if self._main_task is not None:
            self._in_loop(self._main_task.cancel)
        thread.join(self._stop_seconds)
        if thread.is_alive():
            raise RolloutFailed(
                f"the rollout worker did not stop within {self._stop_seconds:g} s, probably "
                "because an environment did not close",
            )

    def update_model_version(self, model_version: int) -> None:
        """Record that the server has the weights of this version."""
        self.versions.announce(model_version)
        self.updates.append((model_version, time.time()))
        self._in_loop(self._set_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if no more samples can be expected.

        Args:
            stale_after_s: most seconds without an iteration of the event loop, or without a
                sample although groups were sealed.

        Raises:
            RolloutFailed: the worker ended or hangs, or all its sessions fail.
        """
        try:
            self.health.check(stale_after_s)
        except RolloutFailed as failed:
            raise failed from self._error

    @property
    def health(self) -> Health:
        """The state that :meth:`check_health` checks."""
        return Health(
            running=self._thread is not None and self._thread.is_alive(),
            exhausted=self._exhausted,
            error="" if self._error is None else repr(self._error),
            beat_at=self._beat_at,
            sample_at=self._sample_at,
            tally=self.tally,
        )

    # The thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - boundary: raised by check_health
            # A cancellation that stop() did not ask for came from code that the worker runs.
            if not (self._stopping and isinstance(error, asyncio.CancelledError)):
                _log.exception("the rollout worker failed")
                self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._main_task = asyncio.current_task()
        self._ready.set()
        if self._stopping:
            return
        async with AsyncExitStack() as stack:
            beat = asyncio.create_task(self._live())
            stack.callback(beat.cancel)
            await self._work(stack)
        self._exhausted = True

    @abstractmethod
    async def _work(self, stack: AsyncExitStack) -> None:
        """Hand over groups until there are no more; ``stack`` closes what it opens."""

    @abstractmethod
    def _set_version(self) -> None:
        """Take note of a version that the trainer announced; called on the event loop."""

    @abstractmethod
    def pause(self) -> None:
        """Let no turn begin until :meth:`resume`; called from any thread."""

    @abstractmethod
    def resume(self) -> None:
        """Undo :meth:`pause`."""

    async def _live(self) -> None:
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(_BEAT)

    async def _put_all(self, made: GroupSamples) -> None:
        """Put a group's samples into the queue, once there is room for each."""
        waited = 0.0
        for session, sample in made.samples:
            sample.enqueued_at = time.time()
            waited += await self._put((session, sample))
        if made.samples:
            self._sample_at = time.monotonic()
        more = {
            "rollout/backpressure_s": waited,
            "trajgym/stale_samples": float(self.rollout_buffer.stale),
        }
        with contextlib.suppress(queue.Full):
            self.metrics_queue.put_nowait(made.metrics | more)

    async def _put(self, pair: tuple[str, Any]) -> float:
        """Put a pair into the queue; return the seconds spent waiting for a free place."""
        begun: float | None = None
        while True:
            self._space.clear()
            try:
                self.rollout_buffer.put_nowait(pair)
            except queue.Full:
                begun = begun or time.monotonic()
                # No deadline: a training step may take any time, and stop() cancels this.
                await self._space.wait()
            else:
                self._queued += 1
                return 0.0 if begun is None else time.monotonic() - begun

    # Calls from the trainer's thread ----------------------------------------------------------

    def _in_loop(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function)

    def _wake(self) -> None:
        self._in_loop(self._space.set)
