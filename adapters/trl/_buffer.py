"""The queue between sessions and TRL's asynchronous trainer."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SampleBuffer"]


class SampleBuffer(queue.Queue[Any]):
    """A queue of samples that drops stale sessions as a whole.

    Samples are put as pairs of session name and sample, all pairs of a session in a row; the
    trainer's ``get`` returns TRL's ``RolloutSample``. A session that became too old while it waited
    is dropped before its first sample is returned. Samples that become too old later are dropped by
    the trainer.

    Args:
        maxsize: most samples in the queue.
        version: returns the trainer's version.
        max_staleness: number of versions that a sample may be behind.
        on_space: called from the trainer's thread when a place becomes free, for producers that
            can't block.
    """

    def __init__(
        self,
        maxsize: int,
        version: Callable[[], int],
        max_staleness: int,
        on_space: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(maxsize)
        self.taken = 0
        """Number of samples returned."""
        self.stale = 0
        """Number of samples dropped by the queue."""
        self.cut = 0
        """Stale samples of sessions whose first sample was returned in time; TRL drops these."""
        self._version = version
        self._max_staleness = max_staleness
        self._on_space = on_space
        self._begun: str | None = None

    # queue.Queue calls the next three methods with its lock held.

    def _qsize(self) -> int:
        waiting = self.queue
        dropped = False
        while waiting and waiting[0][0] != self._begun and self._is_stale(waiting[0][1]):
            name = waiting[0][0]
            while waiting and waiting[0][0] == name:
                waiting.popleft()
                self.stale += 1
                dropped = True
        if dropped:
            self.not_full.notify_all()
            self._on_space()
        return len(waiting)

    def _put(self, item: tuple[str, Any]) -> None:
        self.queue.append(item)

    def _get(self) -> Any:
        return self._take()[1].for_trl()

    def _take(self) -> tuple[str, Any]:
        self._begun, sample = self.queue.popleft()
        self.taken += 1
        self.cut += self._is_stale(sample)
        self._on_space()
        return self._begun, sample

    def _is_stale(self, sample: Any) -> bool:
        return bool(self._version() - sample.model_version > self._max_staleness)
