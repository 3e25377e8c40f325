"""BM25 with bm25s: scores worked out when the index is made, memory-mapped, a fraction of a ms."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import IndexMismatch, SearchUnavailable
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import words
from trajgym.trajectory import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["BM25Engine", "build_bm25"]

_FOLDER = "bm25"
_OURS = "trajgym.json"
_K1, _B = 1.2, 0.75
_ROWS = 200_000
_TOKENIZE = "porter unicode61 remove_diacritics 2"


def build_bm25(index: str | Path, *, on_progress: Callable[[int], None] | None = None) -> bool:
    """Make the files of :class:`BM25Engine` beside an index that :func:`build_index` finished.

    The word lists of SQLite's index are read in order and written out with their scores: memory
    holds the vocabulary and one number per passage. A build that is stopped begins anew.

    Args:
        index: the index directory.
        on_progress: called with the number of words written so far.

    Returns:
        False if they are there already.

    Raises:
        IndexMismatch: no finished index is there.
    """
    store = PassageStore(index)
    try:
        target = Path(index) / _FOLDER
        if _fits(target, store):
            return False
        work = target.with_name(f".{_FOLDER}.part")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _write(store, work, on_progress)
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        store.close()
    return True


class BM25Engine(SearchEngine):
    """BM25 by bm25s, with numba where it is installed; words and stop words as in SQLite's engine.

    Args:
        index: directory that :func:`build_index` and :func:`build_bm25` wrote.
        compiled: use numba, which compiles for some seconds when the engine is opened; without it
            a query takes ten to a hundred times as long.

    Raises:
        IndexMismatch: no such index, or one of other passages.
        MissingExtra: bm25s is not installed.
    """

    def __init__(self, index: str | Path, *, compiled: bool = True) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise MissingExtra("bm25s", "search") from error
        self.name = f"bm25:{index}"
        self._store = PassageStore(index)
        folder = Path(index) / _FOLDER
        if not _fits(folder, self._store):
            self._store.close()
            raise IndexMismatch(
                f"{index}: not indexed for bm25; run `trajgym search index --out {index} "
                "--with bm25`",
            )
        self._stems = _Stems()
        self._index: Any = bm25s.BM25.load(folder, mmap=True, backend=_backend(compiled))
        self._vocabulary: dict[str, int] = self._index.vocab_dict
        self._find([0], 1)  # numba compiles at the first call

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        return await asyncio.to_thread(self._search, list(queries), k)

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return await asyncio.to_thread(self._store.by_ids, list(ids))

    async def close(self) -> None:
        """Close the files."""
        self._store.close()
        self._stems.close()

    def _search(self, queries: list[str], k: int) -> list[list[Hit]]:
        found = [self._rows(query, k) for query in queries]
        rows = {row for hits in found for row, _ in hits}
        passages = self._store.by_rows(sorted(rows))
        return [[Hit(passages[row], score) for row, score in hits] for hits in found]

    def _rows(self, query: str, k: int) -> list[tuple[int, float]]:
        stems = [self._stems.of(word) for word in words(query)]
        ids = [self._vocabulary[stem] for stem in stems if stem in self._vocabulary]
        return self._find(ids, k) if ids else []

    def _find(self, ids: list[int], k: int) -> list[tuple[int, float]]:
        """Return the best rows; equal scores in the order of the corpus."""
        total = len(self._store)
        more = min(total, 2 * k + 32)
        got = self._index.retrieve([ids], k=more, show_progress=False, n_threads=0)
        rows, scores = got.documents[0].astype(np.int64), got.scores[0]
        k = min(k, more)
        if more < total and scores[-1] == scores[k - 1] and scores[-1] > 0:
            # The tie goes on beyond what was asked for: look at all passages.
            every = self._index.get_scores_from_ids(ids)
            rows = np.flatnonzero(every >= scores[k - 1])
            scores = every[rows]
        order = np.lexsort((rows, -scores))[:k]
        return [(int(rows[i]), float(scores[i])) for i in order if scores[i] > 0]


class _Stems:
    """SQLite's own stemmer, so that words of queries meet those of the index."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.executescript(
            f'CREATE VIRTUAL TABLE one USING fts5(word, tokenize="{_TOKENIZE}");'
            "CREATE VIRTUAL TABLE terms USING fts5vocab(one, row);",
        )

    def of(self, word: str) -> str:
        """Return the stem of a word, which may be empty."""
        with self._lock:
            if word not in self._known:
                if len(self._known) > _ROWS:
                    self._known.clear()
                self._connection.execute("DELETE FROM one")
                self._connection.execute("INSERT INTO one VALUES (?)", (word,))
                row = self._connection.execute("SELECT term FROM terms").fetchone()
                self._known[word] = row[0] if row else ""
            return self._known[word]

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _backend(compiled: bool) -> str:
    if not compiled:
        return "numpy"
    try:
        import numba
    except ImportError:
        return "numpy"
    del numba
    return "numba"


def _fits(folder: Path, store: PassageStore) -> bool:
    try:
        meta = json.loads((folder / _OURS).read_text())
    except (OSError, ValueError):
        return False
    return bool(meta.get("hash") == store.hash)


def _write(store: PassageStore, folder: Path, on_progress: Callable[[int], None] | None) -> None:
    lengths = _lengths(store)
    penalty = _K1 * (1 - _B + _B * lengths / max(1e-9, float(lengths.mean())))
    vocabulary: dict[str, int] = {}
    frequencies = [np.zeros(1, np.int64)]
    with (folder / "data").open("wb") as data, (folder / "indices").open("wb") as indices:
        for block in _postings(store):
            for term in block.terms:
                vocabulary[term] = len(vocabulary)
            found = np.bincount(block.term, minlength=len(block.terms))
            frequencies.append(found)
            idf = np.log1p((len(store) - found + 0.5) / (found + 0.5))
            scores = idf[block.term] * block.times / (block.times + penalty[block.row])
            scores.astype(np.float32).tofile(data)
            block.row.astype(np.int32).tofile(indices)
            if on_progress is not None:
                on_progress(len(vocabulary))
    starts = np.cumsum(np.concatenate(frequencies))
    _as_npy(folder / "data", folder / "data.csc.index.npy", np.dtype(np.float32))
    _as_npy(folder / "indices", folder / "indices.csc.index.npy", np.dtype(np.int32))
    np.save(folder / "indptr.csc.index.npy", starts.astype(np.int64))
    (folder / "vocab.index.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    settings = {
        "k1": _K1, "b": _B, "delta": 0.5, "method": "lucene", "idf_method": "lucene",
        "dtype": "float32", "int_dtype": "int32", "num_docs": len(store), "backend": "numpy",
    }  # fmt: skip
    (folder / "params.index.json").write_text(json.dumps(settings))
    (folder / _OURS).write_text(json.dumps({"hash": store.hash}))


def _lengths(store: PassageStore) -> NDArray[np.float64]:
    """Return float64 ``[N]``: the words of each passage, as SQLite has counted them."""
    lengths = np.zeros(len(store), np.float64)
    with store.connection(float("inf")) as connection:
        for row, sizes in connection.execute("SELECT id, sz FROM words_docsize ORDER BY id"):
            lengths[row] = sum(_varints(sizes))
    return lengths


def _varints(data: bytes) -> Iterator[int]:
    """Read SQLite's variable-length integers (of up to eight bytes)."""
    value = 0
    for byte in data:
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            yield value
            value = 0


class _Block(NamedTuple):
    """The word lists of some words, one entry per word and passage, both in order."""

    terms: list[str]
    term: NDArray[np.int64]
    """Index into ``terms``."""
    row: NDArray[np.int64]
    times: NDArray[np.int64]
    """How often the word stands in the passage."""


def _postings(store: PassageStore) -> Iterator[_Block]:
    """Yield every word with the passages that hold it, some words at a time."""
    # The pool's connections are read-only; the view on the word lists has to be made somewhere.
    connection = sqlite3.connect(f"{store.path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        connection.execute(
            "CREATE VIRTUAL TABLE temp.places USING fts5vocab(main, words, instance)"
        )
        terms: list[str] = []
        starts: list[int] = []
        rows: list[int] = []
        last = None
        for term, row in connection.execute("SELECT term, doc FROM temp.places"):
            if term != last:
                if len(rows) >= _ROWS:
                    yield _block(terms, starts, rows)
                    terms, starts, rows = [], [], []
                terms.append(term)
                starts.append(len(rows))
                last = term
            rows.append(row)
        if rows:
            yield _block(terms, starts, rows)
    except sqlite3.Error as error:
        raise SearchUnavailable(f"index {store.path.parent}: {error}") from error
    finally:
        connection.close()


def _block(terms: list[str], starts: list[int], rows: list[int]) -> _Block:
    row = np.array(rows, np.int64)
    term = np.repeat(np.arange(len(terms)), np.diff([*starts, len(rows)]))
    # A word that stands in a passage twice comes twice in a row.
    first = np.flatnonzero(
        np.concatenate([[True], (row[1:] != row[:-1]) | (term[1:] != term[:-1])])
    )
    count = np.diff(np.append(first, len(rows)))
    return _Block(terms, term[first], row[first], count)


def _as_npy(raw: Path, target: Path, dtype: np.dtype[Any]) -> None:
    """Put numpy's header before raw numbers."""
    count = raw.stat().st_size // dtype.itemsize
    header = {"descr": dtype.str, "fortran_order": False, "shape": (count,)}
    with raw.open("rb") as numbers, target.open("wb") as file:
        out: IO[bytes] = file
        np.lib.format.write_array_header_1_0(out, header)
        shutil.copyfileobj(numbers, out, 1 << 20)
    raw.unlink()
