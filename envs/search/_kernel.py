"""The compiled search of BM25 postings. Importing this module needs numba.

In small corpora, all scores are added up. A word that occurs in many passages has a score of every
passage, since adding an array takes a fraction of the time of as many postings. The highest sum of
each block of passages then leaves a few blocks that can hold the best.

In large corpora, words that occur in nearly every passage have long lists of postings and small
scores. A query's terms are read by their largest score, the
highest first (MaxScore, Turtle and Flood, 1995). As soon as the terms that are left can't lift a
new passage into the result, they are only looked up for the passages found so far that may still be
in the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["best_of_many"]

# Sums of up to 256 numbers in float32 are off by less than this, relatively.
_SLACK = 1.0 - 1e-4
_BLOCK = 64
"""Number of sums whose highest is compared first."""
_LOOKUP = 32
"""Looking up one passage costs as much as reading this many entries of a list."""

_compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True)


@_compiled
def best_of_many(
    data: Any, indices: Any, starts: Any, largest: Any, frequent: Any, dense: Any,
    terms: Any, ends: Any, sums: Any, touched: Any,
    rows: Any, scores: Any, counts: Any, many: int,
) -> None:  # fmt: skip
    """Write the best rows of each query, best first and equal ones in order.

    Args:
        data: float32, scores of all postings, term after term.
        indices: uint32, their rows, in order within a term.
        starts: int64 ``[terms + 1]``, where each term starts.
        largest: float32 ``[terms]``, the largest score of each term.
        frequent: int32 ``[terms]``, the row of a term in ``dense``, or -1 if it has none.
        dense: float32 ``[frequent terms, passages]``, their scores, 0 where a term does not occur.
        terms: int64, the terms of all queries, one query after the other. Those of a query are
            sorted in place by their largest scores, the order in which scores are added up. The
            scores of a term that is repeated are multiplied.
        ends: int64 ``[queries]``, where each query ends in ``terms``.
        sums: float32 ``[passages]``, zero before and after.
        touched: uint32 ``[passages + 1]``, scratch.
        rows: uint32 ``[queries, k]``, filled.
        scores: float32 ``[queries, k]``, filled.
        counts: int64 ``[queries]``, set to the number of rows found.
        many: numbers of postings and of passages from which on postings are skipped.
    """
    highest = np.empty((len(sums) + _BLOCK - 1) // _BLOCK, np.float32)
    times = np.empty(len(terms), np.float32)
    first = 0
    for query in range(len(ends)):
        asked = terms[first : ends[query]]
        first = ends[query]
        asked = asked[: _sort(asked, times, largest)]
        entries = 0
        for term in asked:
            entries += starts[term + 1] - starts[term]
        best, tops = rows[query], scores[query]
        if entries < many and len(sums) < many:
            for place in range(len(asked)):
                term = asked[place]
                if frequent[term] >= 0:
                    _add_array(dense[frequent[term]], times[place], sums)
                else:
                    for entry in range(starts[term], starts[term + 1]):
                        sums[indices[entry]] += times[place] * data[entry]
            found = _best(sums, highest, best, tops)
            sums[:] = 0.0
        else:
            found = _some(data, indices, starts, largest, asked, times, sums, touched, best, tops)
        counts[query] = found


@_compiled
def _sort(asked: Any, times: Any, largest: Any) -> int:
    """Sort terms by their largest scores, the highest first, and count how often each occurs.

    Returns the number of distinct terms, which are moved to the front.
    """
    for place in range(1, len(asked)):
        term, at = asked[place], place
        while at > 0 and (
            largest[asked[at - 1]] < largest[term]
            or (largest[asked[at - 1]] == largest[term] and asked[at - 1] > term)
        ):
            asked[at] = asked[at - 1]
            at -= 1
        asked[at] = term
    distinct = 0
    for term in asked:
        if distinct and asked[distinct - 1] == term:
            times[distinct - 1] += 1.0
        else:
            asked[distinct], times[distinct] = term, 1.0
            distinct += 1
    return distinct


@_compiled
def _add_array(scores: Any, times: float, sums: Any) -> None:
    for row in range(len(sums)):
        sums[row] += times * scores[row]


@_compiled
def _best(sums: Any, highest: Any, best: Any, tops: Any) -> int:
    """Write the best rows; return how many there are. ``highest`` is scratch, one per block."""
    bits = sums.view(np.int32)  # of numbers that aren't negative: in the same order, faster
    most = highest.view(np.int32)
    for block in range(len(most)):
        value = np.int32(0)
        for row in range(block * _BLOCK, min((block + 1) * _BLOCK, len(bits))):
            value = max(value, bits[row])
        most[block] = value
    found = 0
    for value in highest:
        found = _keep(tops, found, value)
    # This many blocks have a row of at least this sum, so the best are all in blocks that do.
    least = tops[found - 1] if found == len(tops) else np.float32(0.0)
    found = 0
    for block in range(len(highest)):
        if highest[block] == 0.0 or highest[block] < least:
            continue
        for row in range(block * _BLOCK, min((block + 1) * _BLOCK, len(sums))):
            score = sums[row]
            if score >= least and score > 0.0:
                found = _insert(best, tops, found, row, score)
                if found == len(tops):
                    least = max(least, tops[found - 1])
    return found


@_compiled
def _some(
    data: Any, indices: Any, starts: Any, largest: Any,
    asked: Any, times: Any, sums: Any, touched: Any, best: Any, tops: Any,
) -> int:  # fmt: skip
    """Write the best rows, without reading postings that can't change the result."""
    rest = np.zeros(len(asked) + 1, np.float64)  # what the terms from here on can add
    for place in range(len(asked) - 1, -1, -1):
        rest[place] = rest[place + 1] + times[place] * largest[asked[place]]
    seen, place = 0, 0
    while place < len(asked):
        begin, end = starts[asked[place]], starts[asked[place] + 1]
        if end - begin > seen and rest[place] < _SLACK * _least(sums, touched, seen, tops):
            break
        for entry in range(begin, end):
            row = indices[entry]
            touched[seen] = row
            seen += (sums[row] == 0.0) & (data[entry] > 0.0)
            sums[row] += times[place] * data[entry]
        place += 1
    least = _least(sums, touched, seen, tops)
    kept = _prune(sums, touched, seen, _SLACK * least - rest[place])
    while place < len(asked):
        begin, end = starts[asked[place]], starts[asked[place] + 1]
        _add(data, indices, begin, end, times[place], sums, touched, kept)
        place += 1
        if kept > 2 * len(best):
            least = _least(sums, touched, kept, tops)
            kept = _prune(sums, touched, kept, _SLACK * least - rest[place])
    found = 0
    for at in range(kept):
        found = _insert(best, tops, found, touched[at], sums[touched[at]])
    for at in range(seen):
        sums[touched[at]] = 0.0
    return found


@_compiled
def _least(sums: Any, touched: Any, count: int, tops: Any) -> Any:
    """Return the lowest of the best sums, of which there are as many as ``tops`` is long, or 0."""
    most = len(tops)
    if count < most:
        return np.float32(0.0)
    found = 0
    for place in range(count):
        found = _keep(tops, found, sums[touched[place]])
    return tops[most - 1] if found == most else np.float32(0.0)


@_compiled
def _keep(tops: Any, found: int, score: float) -> int:
    """Insert into a list of the highest scores if it is one of them; return the new length."""
    if found == len(tops):
        if score <= tops[found - 1]:
            return found
    elif score <= 0.0:
        return found
    else:
        found += 1
    at = found - 1
    while at > 0 and tops[at - 1] < score:
        tops[at] = tops[at - 1]
        at -= 1
    tops[at] = score
    return found


@_compiled
def _insert(rows: Any, scores: Any, found: int, row: int, score: float) -> int:
    """Insert into a list of the best rows, equal ones in order; return the new length."""
    if found == len(rows):
        last = found - 1
        if score < scores[last] or (score == scores[last] and row > rows[last]):
            return found
    else:
        found += 1
    at = found - 1
    while at > 0 and (scores[at - 1] < score or (scores[at - 1] == score and rows[at - 1] > row)):
        scores[at] = scores[at - 1]
        rows[at] = rows[at - 1]
        at -= 1
    scores[at] = score
    rows[at] = row
    return found


@_compiled
def _prune(sums: Any, touched: Any, count: int, least: float) -> int:
    """Move the rows whose sums are not below a bound to the front; return their number."""
    kept = 0
    for place in range(count):
        row, other = touched[place], touched[kept]
        keep = sums[row] >= least
        touched[place] = other if keep else row
        touched[kept] = row if keep else other
        kept += keep
    return kept


@_compiled
def _add(
    data: Any, indices: Any, begin: int, end: int, times: float,
    sums: Any, touched: Any, kept: int,
) -> None:  # fmt: skip
    """Add the scores of one term to the first rows of ``touched``."""
    if kept * _LOOKUP > end - begin:
        for entry in range(begin, end):
            row = indices[entry]
            sums[row] += times * data[entry] if sums[row] > 0.0 else np.float32(0.0)
        return
    for place in range(kept):
        row = touched[place]
        entry = _find(indices, begin, end, row)
        sums[row] += times * data[entry] if indices[entry] == row else np.float32(0.0)


@_compiled
def _find(indices: Any, begin: int, end: int, row: int) -> int:
    """Return the last place in a list of postings that is not behind a row's, or the first."""
    low, left = begin, end - begin
    while left > 1:  # without branches that depend on the data
        half = left >> 1
        low += half * (indices[low + half] <= row)
        left -= half
    return low
