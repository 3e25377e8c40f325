"""The best passages by the scores of BM25's postings, compiled or with numpy."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.envs.search._postings import LARGEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["NOTHING", "Asked", "Found", "Ranking"]

_IN_MEMORY = 64 << 20
"""Postings of at most this many bytes are read into memory."""
_FREQUENT = 4
"""A term that occurs in one of this many passages is frequent."""
_MANY = 100_000
"""Numbers of postings and of passages from which on skipping postings is faster."""
_VECTOR = 8
"""Reading this many numbers of an array takes as long as reading one posting."""


class Asked(NamedTuple):
    """The terms of some queries."""

    terms: NDArray[np.int64]
    """Those of all queries, one query after the other."""
    ends: NDArray[np.int64]
    """Where each query ends in ``terms``."""

    @classmethod
    def of(cls, queries: Sequence[Sequence[int]]) -> Asked:
        """Return the terms of each query as arrays."""
        ends = np.fromiter(accumulate(map(len, queries)), np.int64, len(queries))
        return cls(np.fromiter(chain.from_iterable(queries), np.int64), ends)


NOTHING = Asked.of([])


class Found(NamedTuple):
    """The best rows of some queries, best first; equal scores in the order of the corpus."""

    rows: list[int]
    """Those of all queries, one query after the other."""
    scores: list[float]
    ends: list[int]
    """Where each query ends in ``rows`` and ``scores``."""


class _Postings(NamedTuple):
    """The scored passages of every term, one after the other."""

    scores: NDArray[np.float32]
    rows: NDArray[np.uint32]
    starts: NDArray[np.int64]
    """Where the postings of each term start, and the end of the last."""
    largest: NDArray[np.float32]
    """The largest score of each term."""
    frequent: NDArray[np.int32]
    """The row of each term in ``dense``, or -1 if it has none."""
    dense: NDArray[np.float32]
    """Scores of all passages, for the terms that occur in many of them."""


class Ranking:
    """Reads the files that :func:`write_postings` wrote. Safe between threads.

    Args:
        folder: where the files are.
        passages: number of passages of the index.
        compiled: use numba if it is installed.

    Attributes:
        in_memory: whether a search reads no file.
    """

    def __init__(self, folder: Path, passages: int, *, compiled: bool) -> None:
        self._passages = passages
        self._compiled = _compiled() if compiled else None
        files = [folder / f"{name}.csc.index.npy" for name in ("data", "indices", "indptr")]
        files.append(folder / LARGEST)
        small = sum(file.stat().st_size for file in files) <= _IN_MEMORY
        self.in_memory = self._compiled is not None and small
        scores, rows, starts, largest = (_array(file, mapped=not self.in_memory) for file in files)
        rows = rows.view(np.uint32)
        sizes = np.diff(starts)
        least = passages / _FREQUENT if self.in_memory and passages < _MANY else np.inf
        terms = np.flatnonzero(sizes >= least)
        frequent = np.full(len(sizes), -1, np.int32)
        frequent[terms] = np.arange(len(terms))
        # At most twice the memory of all postings.
        dense = np.zeros((len(terms), passages), np.float32)
        for line, term in zip(dense, terms.tolist(), strict=True):
            part = slice(starts[term], starts[term + 1])
            line[rows[part]] = scores[part]
        self._postings = _Postings(scores, rows, starts, largest, frequent, dense)
        self._costs = np.where(frequent < 0, sizes, passages // _VECTOR)
        self._scratch: list[tuple[NDArray[np.float32], NDArray[np.uint32]]] = []

    def equal(self, term: int, other: int) -> bool:
        """Return whether two terms have the same postings."""
        postings = self._postings
        one, two = (slice(postings.starts[t], postings.starts[t + 1]) for t in (term, other))
        return np.array_equal(postings.rows[one], postings.rows[two]) and np.array_equal(
            postings.scores[one], postings.scores[two]
        )

    def cost(self, asked: Asked) -> int:
        """Return the number of postings that take as long to read as all that is read."""
        selecting = len(asked.ends) * self._passages // _VECTOR
        return int(self._costs[asked.terms].sum()) + selecting

    def best(self, asked: Asked, k: int) -> Found:
        """Return the best ``k`` rows of each query, or all that have one of its terms."""
        k = min(k, self._passages)
        rows = np.empty((len(asked.ends), k), np.uint32)
        scores = np.empty((len(asked.ends), k), np.float32)
        counts = np.zeros(len(asked.ends), np.int64)
        if self._compiled is None:
            first = 0
            for query, end in enumerate(asked.ends.tolist()):
                terms = asked.terms[first:end].tolist()
                counts[query] = self._by_numpy(terms, rows[query], scores[query])
                first = end
        else:
            try:
                scratch = self._scratch.pop()
            except IndexError:  # all are in use, in other threads
                sums = np.zeros(self._passages, np.float32)
                scratch = (sums, np.empty(self._passages + 1, np.uint32))
            self._compiled(*self._postings, *asked, *scratch, rows, scores, counts, _MANY)
            self._scratch.append(scratch)
        filled = np.arange(k) < counts[:, None]
        return Found(rows[filled].tolist(), scores[filled].tolist(), counts.cumsum().tolist())

    def _by_numpy(
        self, terms: list[int], best: NDArray[np.uint32], tops: NDArray[np.float32]
    ) -> int:
        """Write the best rows of a query and their scores; return how many there are."""
        postings = self._postings
        sums = np.zeros(self._passages, np.float32)
        # The compiled search adds scores in this order too; rounding depends on it.
        for term in sorted(set(terms), key=lambda term: (-postings.largest[term], term)):
            part = slice(postings.starts[term], postings.starts[term + 1])
            times = np.float32(terms.count(term))
            sums[postings.rows[part]] += times * postings.scores[part]  # no row occurs twice
        rows = np.flatnonzero(sums)
        if len(rows) > len(best):
            least = np.partition(sums[rows], len(rows) - len(best))[len(rows) - len(best)]
            rows = rows[sums[rows] >= least]
        rows = rows[np.lexsort((rows, -sums[rows]))[: len(best)]]
        best[: len(rows)], tops[: len(rows)] = rows, sums[rows]
        return len(rows)


def _array(file: Path, *, mapped: bool) -> Any:
    try:
        # As a plain array: numba takes longer to recognise the type of a memory map.
        return np.asarray(np.load(file, mmap_mode="r" if mapped else None))
    except ValueError:  # an empty array can't be mapped
        return np.load(file)


def _compiled() -> Any:
    """Return the compiled search of many queries, or None without numba."""
    try:
        from trajgym.envs.search._kernel import best_of_many
    except ModuleNotFoundError:
        return None
    return best_of_many
