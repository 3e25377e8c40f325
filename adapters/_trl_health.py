"""Whether a rollout worker can be expected to give more samples."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._trl_harvest import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    @classmethod
    def of(cls, workers: Sequence[Health]) -> Health:
        """Return the health of several workers together: they live as long as all of them do."""
        working = [one for one in workers if not one.exhausted]
        return cls(
            running=all(one.running for one in working),
            exhausted=not working,
            error=next((one.error for one in workers if one.error), ""),
            beat_at=min((one.beat_at for one in working), default=0.0),
            sample_at=max(one.sample_at for one in workers),
            tally=Tally.of([one.tally for one in workers]),
        )

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
