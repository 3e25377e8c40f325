"""Which judges a server runs, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout.annotators import Annotator

__all__ = ["Judges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Annotators that a server runs on the turns of outside agents as soon as they can be judged.

    Give their policies a short retry (``Retry(tries=2, total_seconds=10)``): a turn whose judge
    fails is tried again here, for as long as it takes.

    Args:
        annotators: for example a `VoteJudge` and a `HintJudge`; closed with the server. Their
            sources must differ.
        concurrency: most turns that are judged at the same time.
        seconds: deadline of one turn.
        tries: number of failures after which a turn is given up until the next start of the server.
            Failures count only if the judge answered for another turn in between.
        longest_wait: most seconds between two calls while a judge fails.
        grace: seconds of failure after which sealing groups no longer waits for signals.

    Raises:
        InvalidInput: a number is out of range, or two annotators have the same source.
    """

    annotators: Sequence[Annotator]
    concurrency: int = 8
    seconds: float = 120.0
    tries: int = 3
    longest_wait: float = 30.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        sources = [one.source for one in self.annotators]
        if not sources or len(set(sources)) < len(sources):
            raise InvalidInput(f"judges: expected annotators with different sources, not {sources}")
        for name in ("concurrency", "tries"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"judges: {name} is {getattr(self, name)}; expected at least 1")
        for name in ("seconds", "longest_wait"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInput(f"judges: {name} is {getattr(self, name)}; expected above 0")
        if not self.grace >= 0:
            raise InvalidInput(f"judges: grace is {self.grace}; expected at least 0")
