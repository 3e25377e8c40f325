"""Sending a run's metrics to a tracker, in a separate thread."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, Self

from trajgym.adapters.tracking._metrics import RunMetrics
from trajgym.envs.faults import contained, describe
from trajgym.trajectory import TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.adapters.tracking._base import Tracker
    from trajgym.rollout import Progress
    from trajgym.rollout.evaluation import Prices

__all__ = ["Tracking"]

_log = logging.getLogger(__name__)
_FINISH_SECONDS = 60.0


class Tracking:
    """Sends the metrics of a run to a tracker.

    The tracker runs in a thread, so that a slow service does not delay sessions. If it fails, it is
    closed with what it has, and the run continues without it; the failure is logged and available
    as :attr:`error`.

    Args:
        tracker: the tracker.
        name: name of the run.
        config: settings of the run, as JSON values.
        prices: prices for the metric ``cost``; it is omitted if None.
        finish_seconds: how long exiting the context waits for queued metrics to be sent.

    Raises:
        TrajgymError: on entering, if the tracker can't be started.
    """

    def __init__(
        self,
        tracker: Tracker,
        *,
        name: str,
        config: Mapping[str, Any] | None = None,
        prices: Prices | None = None,
        finish_seconds: float = _FINISH_SECONDS,
    ) -> None:
        self.error = ""
        """Why the tracker failed; empty if it did not."""
        self._tracker = tracker
        self._start = (name, dict(config or {}))
        self._metrics = RunMetrics(prices)
        self._finish_seconds = finish_seconds
        self._queue: queue.SimpleQueue[tuple[dict[str, float], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trajgym-tracking", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._tracker.start(*self._start)
        except Exception as error:  # boundary: the tracker's library may raise anything
            raise TrajgymError(f"the tracker can't be started: {describe(error)}") from error
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join(self._finish_seconds)
        if self._thread.is_alive():
            self._note(f"the tracker did not finish within {self._finish_seconds:g} s")

    def note(self, event: Progress) -> None:
        """Process an event of the runner; does not block."""
        metrics = self._metrics.note(event)
        if metrics is not None:
            self._queue.put((metrics, self._metrics.step))

    def _work(self) -> None:
        for step in (self._log_all, self._tracker.finish):
            try:
                with contained():
                    step()
            except Exception as error:  # noqa: BLE001 - boundary: a tracker must not end the run
                self._note(f"the tracker failed: {describe(error)}")

    def _log_all(self) -> None:
        while (found := self._queue.get()) is not None:
            self._tracker.log(*found)

    def _note(self, cause: str) -> None:
        """Log a failure; the first one is kept."""
        _log.warning("%s", cause)
        self.error = self.error or cause
