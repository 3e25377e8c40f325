"""Choosing which trajectories share a context: burstiness, budgets, and none twice."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Candidate", "Composer", "Context"]

_SLACK = 1e-9
"""For shares that floating point rounds down."""
_LOOK = 64
"""Most levels that are looked at to fill up a context that has two trajectories."""


class Candidate(NamedTuple):
    """A trajectory that can be put into a context."""

    tokens: int
    """Tokens that it takes, or an upper bound."""
    row: int
    """Which one it is."""


class Context(NamedTuple):
    """Trajectories that share a context, in order; the last one is the query."""

    rows: list[int]
    bursty: bool
    """At least two of them are of the query's level."""
    tokens: int


@dataclass(slots=True)
class _Level:
    name: str
    left: list[Candidate] = field(default_factory=list)
    """Those that are not used yet, smallest first."""

    def fitting(self, tokens: int) -> int:
        """Return how many of them take at most this many tokens."""
        return bisect_right(self.left, tokens, key=lambda one: one.tokens)

    def pair_fits(self, tokens: int) -> bool:
        return len(self.left) > 1 and self.left[0].tokens + self.left[1].tokens <= tokens


class Composer:
    """Puts trajectories of levels into contexts, each at most once.

    A context is bursty if at least two of its trajectories are of one level (arXiv 2312.03801).
    In a bursty context these are up to ``repeats``, one of them the query; the others are of other
    levels. In the other contexts all are of different levels. After every context, the number of
    bursty ones is the chosen share of all, rounded down.

    Args:
        levels: the trajectories of each level; none takes more than the budget.
        burstiness: share of bursty contexts, 0.0 to 1.0.
        length: most trajectories of a context, at least 2.
        repeats: most trajectories of the query's level in a bursty context, at least 2.
        budget: most tokens of a context.
        seed: of the choices.
    """

    def __init__(
        self,
        levels: Mapping[str, Iterable[Candidate]],
        *,
        burstiness: float,
        length: int,
        repeats: int,
        budget: int,
        seed: int,
    ) -> None:
        self._burstiness = burstiness
        self._length = length
        self._repeats = min(repeats, length)
        self._budget = budget
        self._random = random.Random(seed)  # noqa: S311 - not a secret
        made = [_Level(name, sorted(found)) for name, found in sorted(levels.items())]
        self._random.shuffle(made)
        self._levels = deque(level for level in made if level.left)
        self._several = deque(level for level in made if len(level.left) > 1)
        self._heap = [
            (level.left[0].tokens, place, level) for place, level in enumerate(self._levels)
        ]
        heapify(self._heap)

    def __iter__(self) -> Iterator[Context]:
        """Yield contexts until one of the kind that is due can't be made."""
        made = bursty = 0
        while True:
            due = bursty + 1 <= self._burstiness * (made + 1) + _SLACK
            found = self._bursty() if due else self._varied()
            if found is None:
                return
            made, bursty = made + 1, bursty + found.bursty
            yield found

    def _bursty(self) -> Context | None:
        while self._several:
            level = self._several[0]
            if not level.pair_fits(self._budget):
                self._several.popleft()  # it only loses trajectories, so it will never fit
                continue
            self._several.rotate(-1)
            query = self._take(level, self._budget - level.left[0].tokens, keep_first=True)
            shown: list[Candidate] = []
            tokens = query.tokens
            while len(shown) + 1 < self._repeats and level.fitting(self._budget - tokens):
                shown.append(self._take(level, self._budget - tokens))
                tokens += shown[-1].tokens
            return self._filled(shown, query, level, bursty=True)
        return None

    def _varied(self) -> Context | None:
        for _ in range(len(self._levels)):
            level = self._next_level()
            if level is None:
                continue
            other = self._smallest_of_others(level)
            if other is not None and level.left[0].tokens + other <= self._budget:
                query = self._take(level, self._budget - other)
                return self._filled([], query, level, bursty=False)
        return None

    def _filled(
        self, shown: list[Candidate], query: Candidate, own: _Level, *, bursty: bool
    ) -> Context:
        """Add trajectories of other levels that fit, and put them in random order."""
        tokens = query.tokens + sum(one.tokens for one in shown)
        used = {own.name}
        for looked in range(len(self._levels)):
            if len(shown) + 1 >= self._length or (shown and looked >= _LOOK):
                break
            level = self._next_level()
            if level is None or level.name in used or not level.fitting(self._budget - tokens):
                continue
            shown.append(self._take(level, self._budget - tokens))
            tokens += shown[-1].tokens
            used.add(level.name)
        self._random.shuffle(shown)
        return Context([*(one.row for one in shown), query.row], bursty, tokens)

    def _next_level(self) -> _Level | None:
        """Return the next level in turn; None if it is used up, after removing it."""
        level = self._levels.popleft()
        if not level.left:
            return None
        self._levels.append(level)
        return level

    def _smallest_of_others(self, level: _Level) -> int | None:
        """Return the tokens of the smallest trajectory of another level; None without any."""
        own, found = None, None
        while self._heap:
            tokens, place, top = self._heap[0]
            if not top.left:
                heappop(self._heap)
            elif top.left[0].tokens != tokens:
                heapreplace(self._heap, (top.left[0].tokens, place, top))
            elif top is level:
                own = heappop(self._heap)
            else:
                found = tokens
                break
        if own is not None:
            heappush(self._heap, own)
        return found

    def _take(self, level: _Level, tokens: int, *, keep_first: bool = False) -> Candidate:
        """Remove a random trajectory of a level that takes at most this many tokens."""
        return level.left.pop(self._random.randrange(int(keep_first), level.fitting(tokens)))
