"""BM25 over memory-mapped postings whose scores were computed when the index was made."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from trajgym.envs.search._analysis import Analyzer, BM25Settings
from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import IndexMismatch
from trajgym.envs.search._postings import write_postings
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["BM25Engine", "build_bm25"]

_FOLDER = "bm25"
_OURS = "trajgym.json"
_FORMAT = 2
_MOST_TERMS = 256


def build_bm25(
    index: str | Path,
    settings: BM25Settings | None = None,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> bool:
    """Make the files of :class:`BM25Engine` beside an index that :func:`build_index` finished.

    Memory holds the vocabulary, one number per passage, and a chunk of passages. A build that is
    stopped starts over. Files made with other settings are replaced.

    Args:
        index: the index directory.
        settings: how text is read and scored; None keeps the settings of existing files, or uses
            the defaults.
        on_progress: called with the number of passages read so far.

    Returns:
        False if the files exist already.

    Raises:
        IndexMismatch: there is no finished index.
        MissingExtra: the settings need PyStemmer, which is not installed.
        InvalidInput: no such stemmer.
    """
    store = PassageStore(index)
    try:
        target = Path(index) / _FOLDER
        known = _settings_of(target, store)
        if known is not None and settings in (None, known):
            return False
        settings = settings or BM25Settings()
        work = target.with_name(f".{_FOLDER}.part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        write_postings(store, settings, work, on_progress)
        ours = {"format": _FORMAT, "hash": store.hash, "settings": settings.model_dump()}
        (work / _OURS).write_text(json.dumps(ours))
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        store.close()
    return True


class BM25Engine(SearchEngine):
    """BM25 (Lucene's variant) with the settings that the index records.

    Only the passages that hold a word of the query are looked at. The files have the format of
    bm25s, which can load them.

    Args:
        index: directory that :func:`build_index` and :func:`build_bm25` wrote.
        compiled: use numba if it is installed. Compiling takes some seconds when an engine is first
            opened; without it a query takes several times as long.

    Attributes:
        settings: how text is read and scored.

    Raises:
        IndexMismatch: there is no such index, or it was built from other passages.
        MissingExtra: the index was made with a stemmer, and PyStemmer is not installed.
    """

    def __init__(self, index: str | Path, *, compiled: bool = True) -> None:
        self.name = f"bm25:{index}"
        self._store = PassageStore(index)
        folder = Path(index) / _FOLDER
        settings = _settings_of(folder, self._store)
        if settings is None:
            self._store.close()
            raise IndexMismatch(
                f"{index}: not indexed for bm25 by this version; run `trajgym search index "
                f"--out {index} --with bm25`",
            )
        self.settings = settings
        self._analyzer = Analyzer(settings)
        self._postings = _Postings(
            *(_array(folder / f"{name}.csc.index.npy") for name in ("data", "indices", "indptr"))
        )
        self._vocabulary: dict[str, int] = json.loads((folder / "vocab.index.json").read_text())
        self._best = _compiled() if compiled else None
        self._scratch: list[tuple[NDArray[np.float32], NDArray[np.int32]]] = []
        self._search([], 1)  # numba compiles at the first call

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        return await asyncio.to_thread(self._search, queries, k)

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return await asyncio.to_thread(self._store.by_ids, list(ids))

    async def close(self) -> None:
        """Close the files."""
        self._store.close()

    def _search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        k = min(k, len(self._store))
        rows, scores = self._rows([self._terms(query) for query in queries], k)
        wanted = {row for found in rows for row in found}
        passages = self._store.by_rows(sorted(wanted))
        return [
            [Hit(passages[row], score) for row, score in zip(*found, strict=True)]
            for found in zip(rows, scores, strict=True)
        ]

    def _terms(self, query: str) -> list[int]:
        if not words(query):
            return []
        known = self._vocabulary
        found = [known[term] for term in self._analyzer.terms(query) if term in known]
        return found[:_MOST_TERMS]

    def _rows(
        self, asked: Sequence[list[int]], k: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the best rows and their scores; equal scores in the order of the corpus."""
        if self._best is None:
            found = [_best_by_numpy(self._postings, len(self._store), terms, k) for terms in asked]
            return [rows for rows, _ in found], [scores for _, scores in found]
        terms = np.array([term for found in asked for term in found], np.int64)
        ends = np.cumsum([len(found) for found in asked], dtype=np.int64)
        rows = np.empty((len(asked), k), np.int32)
        scores = np.empty((len(asked), k), np.float32)
        counts = np.zeros(len(asked), np.int64)
        scratch = self._scratch.pop() if self._scratch else self._new_scratch()
        self._best(*self._postings, terms, ends, *scratch, rows, scores, counts)
        self._scratch.append(scratch)
        return (
            [row[:n] for row, n in zip(rows.tolist(), counts.tolist(), strict=True)],
            [row[:n] for row, n in zip(scores.tolist(), counts.tolist(), strict=True)],
        )

    def _new_scratch(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        total = len(self._store)
        return np.zeros(total, np.float32), np.empty(total, np.int32)


class _Postings(NamedTuple):
    """The scored passages of every term, one after the other."""

    scores: NDArray[np.float32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int64]
    """Where the postings of each term start, and the end of the last."""


def _array(file: Path) -> Any:
    try:
        return np.load(file, mmap_mode="r")
    except ValueError:  # an empty array can't be mapped
        return np.load(file)


def _best_by_numpy(
    postings: _Postings, total: int, terms: Sequence[int], k: int
) -> tuple[list[int], list[float]]:
    sums = np.zeros(total, np.float32)
    for term in terms:
        part = slice(postings.starts[term], postings.starts[term + 1])
        sums[postings.rows[part]] += postings.scores[part]  # a row occurs once per term
    rows = np.flatnonzero(sums)
    if len(rows) > k:
        least = np.partition(sums[rows], len(rows) - k)[len(rows) - k]
        rows = rows[sums[rows] >= least]
    rows = rows[np.lexsort((rows, -sums[rows]))[:k]]
    return rows.tolist(), sums[rows].tolist()


_kernel: Any = None


def _compiled() -> Any:
    """Return the compiled search of many queries, or None without numba."""
    global _kernel
    if _kernel is None:
        try:
            import numba
        except ImportError:
            return None
        _kernel = numba.njit(nogil=True, cache=True)(_best_of_many)
    return _kernel


def _best_of_many(
    data: Any, indices: Any, starts: Any,
    terms: Any, ends: Any, sums: Any, touched: Any,
    rows: Any, scores: Any, counts: Any,
) -> None:  # fmt: skip
    """Write the best rows of each query, best first and equal ones in order.

    ``sums`` is zero before and after. Where a query's words occur in few passages, ``touched``
    lists them; otherwise all passages are scanned, which is faster than keeping the list.
    """
    most = rows.shape[1]
    first = 0
    for query in range(len(ends)):
        entries = 0
        for place in range(first, ends[query]):
            entries += starts[terms[place] + 1] - starts[terms[place]]
        few = entries < len(sums) // 4
        seen = 0 if few else len(sums)
        for place in range(first, ends[query]):
            term = terms[place]
            if few:
                for entry in range(starts[term], starts[term + 1]):
                    row = indices[entry]
                    if sums[row] == 0.0:
                        touched[seen] = row
                        seen += 1
                    sums[row] += data[entry]
            else:
                for entry in range(starts[term], starts[term + 1]):
                    sums[indices[entry]] += data[entry]
        if entries == 0:
            seen = 0
        first = ends[query]
        kept = 0
        least = 0.0
        for place in range(seen):
            row = touched[place] if few else place
            score = sums[row]
            sums[row] = 0.0
            if score == 0.0 or score < least:
                continue
            if kept == most and score == least and row > rows[query, most - 1]:
                continue
            if kept < most:
                kept += 1
            at = kept - 1
            while at > 0 and (
                scores[query, at - 1] < score
                or (scores[query, at - 1] == score and rows[query, at - 1] > row)
            ):
                scores[query, at] = scores[query, at - 1]
                rows[query, at] = rows[query, at - 1]
                at -= 1
            scores[query, at] = score
            rows[query, at] = row
            if kept == most:
                least = scores[query, most - 1]
        counts[query] = kept


def _settings_of(folder: Path, store: PassageStore) -> BM25Settings | None:
    """Return the settings of the files in a folder; None if there are none for these passages."""
    try:
        meta = json.loads((folder / _OURS).read_text())
        if (meta.get("format"), meta.get("hash")) != (_FORMAT, store.hash):
            return None
        return BM25Settings.model_validate(meta["settings"])
    except (OSError, ValueError, KeyError, ValidationError):
        return None
