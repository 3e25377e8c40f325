"""The trainer's side of one process of a rollout worker."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

from trajgym.adapters.trl._child import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext

    from trajgym.adapters.trl._child import Expected
    from trajgym.adapters.trl._health import Health
    from trajgym.rollout.fleet import Shard

__all__ = ["Spawned"]

_THREADS = 15.0
"""Seconds for reading the last messages of a process that has exited."""


class Spawned:
    """A process, and the threads that read its messages.

    Args:
        context: the spawn context.
        make: pickled function that makes the worker.
        cells: shared memory of the clock.
        expected: settings that the worker must have.
        shard: index and number of the workers.
        put: called with each pair of session and sample; may block.
        metrics: called with a group's metrics.
    """

    def __init__(
        self,
        context: SpawnContext,
        make: bytes,
        cells: Any,
        expected: Expected,
        shard: Shard,
        put: Callable[[tuple[str, Any]], None],
        metrics: Callable[[dict[str, Any]], None],
    ) -> None:
        self.health: Health | None = None
        """The last report; None before the first."""
        self.failure = ""
        """Traceback of the failure, or ""."""
        self._put, self._metrics = put, metrics
        self._sending = threading.Lock()
        samples, their_samples = context.Pipe(duplex=False)
        self._control, their_control = context.Pipe()
        name = f"trajgym-trl-{shard.index}"
        self.process = context.Process(
            target=serve,
            args=(make, cells, expected, shard, their_samples, their_control),
            name=name,
        )
        self.process.start()
        # With these closed here, reading ends when the process exits.
        their_samples.close()
        their_control.close()
        self._threads = [
            threading.Thread(target=work, args=(pipe,), name=name, daemon=True)
            for work, pipe in ((self._receive, samples), (self._listen, self._control))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, *message: Any) -> None:
        """Send a command; ignored if the process has exited, which :attr:`end` reports."""
        with self._sending, contextlib.suppress(OSError):
            self._control.send(message)

    @property
    def end(self) -> str:
        """How the process exited, or "" while it is alive."""
        if self.process.is_alive():
            return ""
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def join(self, seconds: float) -> bool:
        """Wait for the process to exit and read its last messages; on timeout kill it (False)."""
        self.process.join(seconds)
        ended = not self.process.is_alive()
        if not ended:
            self.process.kill()
            self.process.join(_THREADS)
        for thread in self._threads:
            thread.join(_THREADS)
        self._control.close()
        return ended

    def _listen(self, control: Connection) -> None:
        for kind, value in _messages(control):
            if kind == "health":
                self.health = value
            elif kind == "failed":
                self.failure = value
            else:
                self._metrics(value)

    def _receive(self, samples: Connection) -> None:
        for batch in _messages(samples):
            for pair in batch:
                self._put(pair)
        samples.close()


def _messages(pipe: Connection) -> Iterator[Any]:
    """Yield messages until the other end is closed."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return
