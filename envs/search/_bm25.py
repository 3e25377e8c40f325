"""BM25 over memory-mapped postings whose scores were computed when the index was made."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from trajgym.envs.search._analysis import Analyzer, BM25Settings
from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import IndexMismatch
from trajgym.envs.search._postings import write_postings
from trajgym.envs.search._ranking import NOTHING, Asked, Found, Ranking
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import has_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["BM25Engine", "build_bm25"]

_FOLDER = "bm25"
_OURS = "trajgym.json"
_FORMAT = 3
_MOST_TERMS = 256
_MOST_KEPT = 100_000
_QUICK_HITS = 1000
_QUICK_LETTERS = 5000
_QUICK_ENTRIES = 1_000_000
"""Searches up to these sizes take a millisecond, or two on a slow machine."""


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
        self._ranking = Ranking(folder, len(self._store), compiled=compiled)
        vocabulary = json.loads((folder / "vocab.index.json").read_text())
        self._numbers = _Numbers(vocabulary, self._analyzer, self._ranking)
        self._search([], 1)  # numba compiles at the first call

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        ranking = self._ranking
        quick = ranking.in_memory and len(queries) * k <= _QUICK_HITS
        quick = quick and sum(map(len, queries)) <= _QUICK_LETTERS
        asked = self._asked(queries) if quick else NOTHING
        if not quick or ranking.cost(asked) > _QUICK_ENTRIES:
            return await asyncio.to_thread(self._search, queries, k)
        # Answered here: it takes less time than starting a thread does.
        found = ranking.best(asked, k)
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
        found = self._ranking.best(self._asked(queries), k)
        try:
            return _hits(found, self._store.kept)
        except KeyError:
            return self._read(found)

    def _read(self, found: Found) -> list[list[Hit]]:
        return _hits(found, self._store.by_rows(sorted(set(found.rows))))

    def _asked(self, queries: Sequence[str]) -> Asked:
        return Asked.of([self._terms(query) for query in queries])

    def _terms(self, query: str) -> list[int]:
        if not has_words(query):
            return []
        numbers = map(self._numbers.__getitem__, self._analyzer.words(query))
        return list(islice(chain.from_iterable(numbers), _MOST_TERMS))


class _Numbers(dict[str, tuple[int, ...]]):
    """The numbers of the terms that a word of a query stands for; those of most words are kept."""

    def __init__(self, vocabulary: dict[str, int], analyzer: Analyzer, ranking: Ranking) -> None:
        self._vocabulary = vocabulary
        self._analyzer = analyzer
        self._ranking = ranking

    def __missing__(self, word: str) -> tuple[int, ...]:
        found = map(self._vocabulary.get, self._analyzer.forms(word))
        numbers = tuple(number for number in found if number is not None)
        # Many stems are those of a single word. One term twice is read once.
        if len(numbers) > 1 and self._ranking.equal(*numbers):
            numbers = (numbers[0],) * 2
        if len(self) >= _MOST_KEPT:
            self.clear()
        self[word] = numbers
        return numbers


def _hits(found: Found, passages: Mapping[int, Passage]) -> list[list[Hit]]:
    """Return the hits of each query.

    Raises:
        KeyError: a passage is missing.
    """
    pairs = zip(map(passages.__getitem__, found.rows), found.scores, strict=True)
    hits = list(map(partial(tuple.__new__, Hit), pairs))  # half the time of Hit(passage, score)
    return [hits[start:end] for start, end in pairwise([0, *found.ends])]


def _settings_of(folder: Path, store: PassageStore) -> BM25Settings | None:
    """Return the settings of the files in a folder; None if there are none for these passages."""
    try:
        meta = json.loads((folder / _OURS).read_text())
        if (meta.get("format"), meta.get("hash")) != (_FORMAT, store.hash):
            return None
        return BM25Settings.model_validate(meta["settings"])
    except (OSError, ValueError, KeyError, ValidationError):
        return None
