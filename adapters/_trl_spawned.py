"""The trainer's side of one process of a rollout worker."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

from trajgym.adapters._trl_child import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext

    from trajgym.adapters._trl_child import Promise
    from trajgym.adapters._trl_health import Health
    from trajgym.adapters._trl_shard import Shard

__all__ = ["Spawned"]

_THREADS = 15.0
"""Seconds that reading the last words of a process that has ended may take."""


class Spawned:
    """A process, and the threads that read what it sends.

    Args:
        context: spawns it.
        make: pickled function that makes its worker.
        cells: of the clock.
        promise: what the worker must be like.
        shard: which of the workers it is.
        put: takes a pair of session and sample; may wait for room.
        metrics: takes a group's metrics.
    """

    def __init__(
        self,
        context: SpawnContext,
        make: bytes,
        cells: Any,
        promise: Promise,
        shard: Shard,
        put: Callable[[tuple[str, Any]], None],
        metrics: Callable[[dict[str, Any]], None],
    ) -> None:
        self.health: Health | None = None
        """As it last told; None before it began to work."""
        self.failure = ""
        """Why it failed, in its own words."""
        self._put, self._metrics = put, metrics
        self._sending = threading.Lock()
        samples, their_samples = context.Pipe(duplex=False)
        self._control, their_control = context.Pipe()
        name = f"trajgym-trl-{shard.index}"
        self.process = context.Process(
            target=serve,
            args=(make, cells, promise, shard, their_samples, their_control),
            name=name,
        )
        self.process.start()
        # Only the process holds these now: when it dies, reading here ends.
        their_samples.close()
        their_control.close()
        self._threads = [
            threading.Thread(target=work, args=(pipe,), name=name, daemon=True)
            for work, pipe in ((self._receive, samples), (self._listen, self._control))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, *message: Any) -> None:
        """Give a command; one that died takes none, and its end says so."""
        with self._sending, contextlib.suppress(OSError):
            self._control.send(message)

    @property
    def end(self) -> str:
        """How it ended, or "" while it lives."""
        if self.process.is_alive():
            return ""
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def join(self, seconds: float) -> bool:
        """Wait until it has ended and its last word was read; else kill it and return False."""
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
    """Yield what arrives until the other side is gone."""
    while True:
        try:
            yield pipe.recv()
        except (EOFError, OSError):
            return
