"""BM25 over memory-mapped postings whose scores were computed when the index was made."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import ValidationError

from trajgym.envs.search._analysis import Analyzer, BM25Settings
from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import IndexMismatch
from trajgym.envs.search._postings import LARGEST, write_postings
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import has_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["BM25Engine", "build_bm25"]

_Found: TypeAlias = "list[tuple[list[int], list[float]]]"
"""For each query the rows that were found, and their scores."""
_FOLDER = "bm25"
_OURS = "trajgym.json"
_FORMAT = 3
_MOST_TERMS = 256
_IN_MEMORY = 64 << 20
"""Postings of at most this many bytes are read into memory."""
_QUICK_HITS = 100
_QUICK_LETTERS = 500
_QUICK_ENTRIES = 100_000
"""Searches up to these sizes take a fraction of a millisecond."""


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
        files = [folder / f"{name}.csc.index.npy" for name in ("data", "indices", "indptr")]
        files.append(folder / LARGEST)
        size = sum(file.stat().st_size for file in files)
        self._in_memory = compiled and size <= _IN_MEMORY
        data, rows, starts, largest = (_array(file, mapped=not self._in_memory) for file in files)
        self._postings = _Postings(data, rows.view(np.uint32), starts, largest)
        self._vocabulary: dict[str, int] = json.loads((folder / "vocab.index.json").read_text())
        self._best = _compiled() if compiled else None
        self._scratch: list[tuple[NDArray[np.float32], NDArray[np.uint32]]] = []
        self._search([], 1)  # numba compiles at the first call

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        quick = self._in_memory and k <= _QUICK_HITS and sum(map(len, queries)) <= _QUICK_LETTERS
        asked = [self._terms(query) for query in queries] if quick else []
        if not quick or self._postings.entries(asked) > _QUICK_ENTRIES:
            return await asyncio.to_thread(self._search, queries, k)
        # Answered here: it takes less time than starting a thread does.
        found = self._rows(asked, min(k, len(self._store)))
        try:
            return _hits(found, self._store.kept)
        except KeyError:
            return await asyncio.to_thread(self._read, found)

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return await asyncio.to_thread(self._store.by_ids, list(ids))

    async def close(self) -> None:
        """Close the files."""
        self._store.close()

    def _search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        found = self._rows([self._terms(query) for query in queries], min(k, len(self._store)))
        try:
            return _hits(found, self._store.kept)
        except KeyError:
            return self._read(found)

    def _read(self, found: _Found) -> list[list[Hit]]:
        rows = set(chain.from_iterable(rows for rows, _ in found))
        return _hits(found, self._store.by_rows(sorted(rows)))

    def _terms(self, query: str) -> list[int]:
        if not has_words(query):
            return []
        found = map(self._vocabulary.get, self._analyzer.terms(query))
        return [term for term in found if term is not None][:_MOST_TERMS]

    def _rows(self, asked: Sequence[list[int]], k: int) -> _Found:
        """Return the best rows and their scores; equal scores in the order of the corpus."""
        if self._best is None:
            return [_best_by_numpy(self._postings, len(self._store), terms, k) for terms in asked]
        terms = np.fromiter(chain.from_iterable(asked), np.int64)
        ends = np.fromiter(accumulate(map(len, asked)), np.int64)
        rows = np.empty((len(asked), k), np.uint32)
        scores = np.empty((len(asked), k), np.float32)
        counts = np.zeros(len(asked), np.int64)
        scratch = self._scratch.pop() if self._scratch else self._new_scratch()
        self._best(*self._postings, terms, ends, *scratch, rows, scores, counts)
        self._scratch.append(scratch)
        found = zip(rows.tolist(), scores.tolist(), counts.tolist(), strict=True)
        return [(rows[:n], scores[:n]) for rows, scores, n in found]

    def _new_scratch(self) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
        total = len(self._store)
        return np.zeros(total, np.float32), np.empty(total + 1, np.uint32)


class _Postings(NamedTuple):
    """The scored passages of every term, one after the other."""

    scores: NDArray[np.float32]
    rows: NDArray[np.uint32]
    starts: NDArray[np.int64]
    """Where the postings of each term start, and the end of the last."""
    largest: NDArray[np.float32]
    """The largest score of each term."""

    def entries(self, asked: Sequence[list[int]]) -> int:
        """Return how many scores the terms of some queries have."""
        starts = self.starts
        return sum(int(starts[term + 1] - starts[term]) for terms in asked for term in terms)


def _hits(found: _Found, passages: Mapping[int, Passage]) -> list[list[Hit]]:
    passage = passages.__getitem__
    hit = partial(tuple.__new__, Hit)  # half the time of Hit(passage, score)
    return [list(map(hit, zip(map(passage, rows), scores, strict=True))) for rows, scores in found]


def _array(file: Path, *, mapped: bool) -> Any:
    try:
        # As a plain array: numba takes longer to recognise the type of a memory map.
        return np.asarray(np.load(file, mmap_mode="r" if mapped else None))
    except ValueError:  # an empty array can't be mapped
        return np.load(file)


def _best_by_numpy(
    postings: _Postings, total: int, terms: Sequence[int], k: int
) -> tuple[list[int], list[float]]:
    sums = np.zeros(total, np.float32)
    # The compiled search adds scores in this order too; rounding depends on it.
    for term in sorted(terms, key=postings.largest.__getitem__, reverse=True):
        part = slice(postings.starts[term], postings.starts[term + 1])
        sums[postings.rows[part]] += postings.scores[part]  # a row occurs once per term
    rows = np.flatnonzero(sums)
    if len(rows) > k:
        least = np.partition(sums[rows], len(rows) - k)[len(rows) - k]
        rows = rows[sums[rows] >= least]
    rows = rows[np.lexsort((rows, -sums[rows]))[:k]]
    return rows.tolist(), sums[rows].tolist()


def _compiled() -> Any:
    """Return the compiled search of many queries, or None without numba."""
    try:
        from trajgym.envs.search._kernel import best_of_many
    except ModuleNotFoundError:
        return None
    return best_of_many


def _settings_of(folder: Path, store: PassageStore) -> BM25Settings | None:
    """Return the settings of the files in a folder; None if there are none for these passages."""
    try:
        meta = json.loads((folder / _OURS).read_text())
        if (meta.get("format"), meta.get("hash")) != (_FORMAT, store.hash):
            return None
        return BM25Settings.model_validate(meta["settings"])
    except (OSError, ValueError, KeyError, ValidationError):
        return None
