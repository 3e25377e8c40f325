"""Whether a rollout worker can be expected to give more samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.adapters._errors import RolloutFailed

if TYPE_CHECKING:
    from trajgym.adapters._trl_harvest import Tally

__all__ = ["Health"]


@dataclass(slots=True)
class Health:
    """Signs of life; times are of ``time.monotonic()``, which all processes of a machine share.

    Args:
        running: its thread lives.
        exhausted: it read all tasks.
        error: what ended it, or "".
        beat_at: when its event loop was last seen to turn.
        sample_at: when it last gave a sample.
        tally: what became of the sessions.
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
            stale_after_s: seconds without a sign of life, or in which sealed groups gave nothing.

        Raises:
            RolloutFailed: the worker ended, hangs, or all its sessions fail.
        """
        if self.error:
            raise RolloutFailed(f"the rollout worker failed: {self.error}")
        if self.exhausted:
            raise RolloutFailed("there are no more tasks: give a sequence, which is repeated")
        if not self.running:
            raise RolloutFailed("the rollout worker does not run")
        now, tally = time.monotonic(), self.tally
        if now - self.beat_at > stale_after_s:
            raise RolloutFailed(
                f"the rollout worker's event loop has stood still for {now - self.beat_at:.0f} s: "
                "something blocks it",
            )
        if tally.barren and now - self.sample_at > stale_after_s:
            raise RolloutFailed(
                f"no sample for {now - self.sample_at:.0f} s: {tally.barren} groups gave none; "
                f"members left: {dict(tally.left)}, dropped: {dict(tally.dropped)}. The store has "
                "each session's cause",
            )
