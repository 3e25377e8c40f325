"""Health of a rollout worker: whether more samples can be expected."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.adapters._errors import RolloutFailed

if TYPE_CHECKING:
    from trajgym.adapters.trl._group_samples import Tally

__all__ = ["Health"]


@dataclass(slots=True)
class Health:
    """State of a worker; times are of ``time.monotonic()``.

    Args:
        running: whether its thread is alive.
        exhausted: whether all tasks were read.
        error: the error that ended it, or "".
        beat_at: time of the last iteration of its event loop (s).
        sample_at: time of the last sample (s).
        tally: counts of sessions.
    """

    running: bool
    exhausted: bool
    error: str
    beat_at: float
    sample_at: float
    tally: Tally

    def check(self, stale_after_s: float) -> None:
        """Raise if no more samples can be expected.

        Args:
            stale_after_s: most seconds without an iteration of the event loop, or without a
                sample although groups were sealed.

        Raises:
            RolloutFailed: the worker ended or hangs, or all its sessions fail.
        """
        if self.error:
            raise RolloutFailed(f"the rollout worker failed: {self.error}")
        if self.exhausted:
            raise RolloutFailed("there are no more tasks: pass a sequence, which is repeated")
        if not self.running:
            raise RolloutFailed("the rollout worker is not running")
        now, tally = time.monotonic(), self.tally
        if now - self.beat_at > stale_after_s:
            raise RolloutFailed(
                f"the rollout worker's event loop has been blocked for {now - self.beat_at:.0f} s: "
                "code of an environment, policy or deriver does not return",
            )
        if tally.barren and now - self.sample_at > stale_after_s:
            raise RolloutFailed(
                f"no sample for {now - self.sample_at:.0f} s: {tally.barren} groups had none; "
                f"members left: {dict(tally.left)}, dropped: {dict(tally.dropped)}. The store has "
                "the cause for each session",
            )
