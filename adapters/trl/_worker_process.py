"""The trainer's side of one process of a rollout worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters.trl._child import serve
from trajgym.rollout.fleet._spawned import Spawned

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnContext

    from trajgym.adapters.trl._child import Expected
    from trajgym.adapters.trl._health import Health
    from trajgym.rollout.fleet import Shard

__all__ = ["WorkerProcess"]


class WorkerProcess(Spawned):
    """A process that runs a rollout worker; started by the constructor.

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
        super().__init__(
            context,
            serve,
            (make, cells, expected, shard),
            name=f"trajgym-trl-{shard.index}",
            receivers=[self._listen, self._receive],
        )

    def _listen(self, message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "health":
            self.health = value
        elif kind == "failed":
            self.failure = value
        else:
            self._metrics(value)

    def _receive(self, batch: list[tuple[str, Any]]) -> None:
        for pair in batch:
            self._put(pair)
