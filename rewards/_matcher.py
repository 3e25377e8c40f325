"""Similarity of two sequences, equal to `difflib.SequenceMatcher.ratio` and faster.

difflib makes a dictionary entry for each pair of equal elements. Here, a row of the comparison is
one integer with a bit per element of the second sequence. `_Ladder` has the end positions of
matches of lengths 1, 2, 4, ...; the longest match is found by descending from the greatest length.
"""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["SimilarityMatcher", "similarity"]

_T = TypeVar("_T", bound="Hashable")
_POPULAR_FROM = 200
_SHORT = 20_000
"""Below this product of lengths difflib is faster."""
_Rows = dict[int, int]
"""Rows (indices in the first sequence) to bits (indices in the second)."""


def similarity(a: Sequence[Hashable], b: Sequence[Hashable], *, autojunk: bool = False) -> float:
    """Return ``2 * matched / (len(a) + len(b))``, in [0, 1]; 1.0 for two empty sequences.

    Equal to ``difflib.SequenceMatcher(None, a, b, autojunk).ratio()``, which depends on the order
    of the arguments.

    Args:
        a: text or other sequence of hashable elements.
        b: the sequence that it is compared with.
        autojunk: do not start matches at elements that make up more than 1% of a ``b`` of 200 or
            more elements. A shift by two characters can then reduce the ratio of two nearly equal
            texts to 0.
    """
    if len(a) * len(b) < _SHORT:
        return SequenceMatcher(None, a, b, autojunk).ratio()
    return SimilarityMatcher(b, autojunk=autojunk).ratio(a)


class SimilarityMatcher(Generic[_T]):
    """Compares many sequences with one sequence.

    A comparison takes about ``len(a) * log2(longest match)`` operations on integers of ``len(b)``
    bits for each level of recursion, regardless of repeated elements.

    Args:
        b: the sequence that the others are compared with.
        autojunk: see `similarity`; on by default here, as in difflib.
    """

    def __init__(self, b: Sequence[_T], *, autojunk: bool = True) -> None:
        self._b = b
        self._bits: dict[_T, int] = {}
        for j, element in enumerate(b):
            self._bits[element] = self._bits.get(element, 0) | 1 << j
        self._counts = Counter(b)
        self._junk = autojunk and len(b) >= _POPULAR_FROM
        if self._junk:
            most = len(b) // 100 + 1
            for element, count in self._counts.items():
                if count > most:
                    del self._bits[element]

    def could_reach(self, a: Sequence[_T], ratio: float) -> bool:
        """Return False if the lengths alone rule out a similarity of ``ratio``."""
        total = len(a) + len(self._b)
        return not total or 2.0 * min(len(a), len(self._b)) / total >= ratio

    def ratio(self, a: Sequence[_T]) -> float:
        """Return the similarity of ``a`` to the sequence."""
        total = len(a) + len(self._b)
        return 2.0 * self.matched(a) / total if total else 1.0

    def matched(self, a: Sequence[_T]) -> int:
        """Return the total size of the matching blocks."""
        if a == self._b:
            return len(a)
        ladder = _Ladder({i: bits for i, e in enumerate(a) if (bits := self._bits.get(e, 0))})
        total = 0
        todo = [(0, len(a), 0, len(self._b))]
        while todo:
            alo, ahi, blo, bhi = todo.pop()
            i, j, size = ladder.longest(alo, ahi, blo, bhi)
            if self._junk:
                i, j, size = self._extended(a, i, j, size, (alo, ahi, blo, bhi))
            if not size:
                continue
            total += size
            if alo < i and blo < j:
                todo.append((alo, i, blo, j))
            if i + size < ahi and j + size < bhi:
                todo.append((i + size, ahi, j + size, bhi))
        return total

    def _extended(
        self, a: Sequence[_T], i: int, j: int, size: int, window: tuple[int, int, int, int]
    ) -> tuple[int, int, int]:
        """Extend a match over popular elements, at which no match can start."""
        alo, ahi, blo, bhi = window
        b = self._b
        while i > alo and j > blo and a[i - 1] == b[j - 1]:
            i, j, size = i - 1, j - 1, size + 1
        while i + size < ahi and j + size < bhi and a[i + size] == b[j + size]:
            size += 1
        return i, j, size


class _Ladder:
    """End positions of matches of 1, 2, 4, ... elements."""

    def __init__(self, singles: _Rows) -> None:
        self._rungs = [singles]

    def _rung(self, p: int) -> _Rows:
        while len(self._rungs) <= p:
            shift = 1 << len(self._rungs) - 1
            self._rungs.append(_joined(self._rungs[-1], self._rungs[-1], shift))
        return self._rungs[p]

    def longest(self, alo: int, ahi: int, blo: int, bhi: int) -> tuple[int, int, int]:
        """Return the starts in both sequences and the size of the longest match in the window.

        Of several, the one that starts first in ``a``, then first in ``b``. The size is 0 if there
        is none.
        """
        best, p = self._window(0, alo, ahi, blo, bhi), 0
        if not best:
            return alo, blo, 0
        while 1 << p + 1 <= min(ahi - alo, bhi - blo):
            longer = self._window(p + 1, alo, ahi, blo, bhi)
            if not longer:
                break
            best, p = longer, p + 1
        size = 1 << p
        for q in range(p - 1, -1, -1):
            longer = _joined(self._window(q, alo, ahi, blo, bhi), best, 1 << q)
            if longer:
                best, size = longer, size + (1 << q)
        i = min(best)
        j = (best[i] & -best[i]).bit_length() - 1
        return i - size + 1, j - size + 1, size

    def _window(self, p: int, alo: int, ahi: int, blo: int, bhi: int) -> _Rows:
        """Return the ends of matches of 2**p elements that are inside the window."""
        rung = self._rung(p)
        lead = (1 << p) - 1
        if bhi - blo <= lead:
            return {}
        mask = (1 << bhi) - (1 << blo + lead)
        rows = range(alo + lead, ahi)
        if len(rows) > len(rung):
            return {i: on for i, bits in rung.items() if i in rows and (on := bits & mask)}
        return {i: on for i in rows if (on := rung.get(i, 0) & mask)}


def _joined(ends: _Rows, befores: _Rows, shift: int) -> _Rows:
    """Return where a match of ``befores`` is followed directly by one of ``shift`` elements."""
    return {
        i: on
        for i, bits in ends.items()
        if (before := befores.get(i - shift)) and (on := bits & before << shift)
    }
