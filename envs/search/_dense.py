"""Dense retrieval: exact or approximate search over the vectors of an encoder."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.envs.search._ann import HNSWSettings, Neighbours, build_neighbours
from trajgym.envs.search._encoders import MiniLM, encode_passages, encode_queries
from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import IndexMismatch
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from trajgym.envs.search._encoders import Encoder

__all__ = ["DenseEngine", "build_dense"]

_FOLDER = "dense"
_VECTORS = "vectors.f32"
_STATE = "state.json"
_CHUNK = 512
_ROWS = 65_536


def build_dense(
    index: str | Path,
    *,
    encoder: Encoder | None = None,
    approximate: bool | HNSWSettings = False,
    on_progress: Callable[[int], None] | None = None,
) -> bool:
    """Encode the passages of a finished index; a build that was interrupted resumes.

    Args:
        index: the index directory.
        encoder: :class:`MiniLM` by default.
        approximate: also build an HNSW graph for :class:`DenseEngine`'s approximate search, and
            measure its recall. A graph made with other settings than those given is replaced.
        on_progress: called with the number of passages encoded so far.

    Returns:
        False if all vectors exist already.

    Raises:
        IndexMismatch: there is no finished index.
        MissingExtra: see :class:`MiniLM`; or `usearch` is not installed.
    """
    store = PassageStore(index)
    try:
        folder = Path(index) / _FOLDER
        known = _state(folder)
        complete = known.get("hash") == store.hash and known.get("rows") == len(store)
        if not complete or (encoder is not None and known.get("encoder") != encoder.name):
            encoder = encoder or MiniLM()
            if (known.get("hash"), known.get("encoder")) != (store.hash, encoder.name):
                known = {}
            _encode(store, folder, encoder, int(known.get("rows", 0)), on_progress)
            complete = False
            known = _state(folder)
        built = not complete
        if approximate:
            vectors = _vectors(folder, known)
            settings = approximate if isinstance(approximate, HNSWSettings) else None
            name = str(known["encoder"])
            built = build_neighbours(folder, vectors, store.hash, name, settings) or built
    finally:
        store.close()
    return built


class DenseEngine(SearchEngine):
    """Search by inner product.

    Queries are encoded one by one, so that batching does not change results.

    Args:
        index: directory that :func:`build_index` and :func:`build_dense` wrote.
        encoder: the encoder of the passages; :class:`MiniLM` by default.
        approximate: search the HNSW graph instead of all vectors. It finds most of the nearest
            passages; the share was measured when it was built, see :attr:`recall`.

    Attributes:
        recall: share of the ten nearest passages that the approximate search finds; 1.0 for the
            exact one.

    Raises:
        IndexMismatch: there is no such index, or it was built from other passages or by another
            encoder.
        MissingExtra: see :class:`MiniLM`.
    """

    def __init__(
        self,
        index: str | Path,
        *,
        encoder: Encoder | None = None,
        approximate: bool = False,
    ) -> None:
        self.name = f"dense:{index}"
        self._store = PassageStore(index)
        self._encoder = encoder or MiniLM()
        wanted = {
            "hash": self._store.hash,
            "encoder": self._encoder.name,
            "rows": len(self._store),
        }
        if _state(Path(index) / _FOLDER) != wanted:
            self._store.close()
            raise IndexMismatch(
                f"{index}: not encoded by {self._encoder.name}; run `trajgym search index --out "
                f"{index} --with dense`",
            )
        folder = Path(index) / _FOLDER
        self._vectors = _vectors(folder, {**wanted, "size": self._encoder.size})
        self._neighbours: Neighbours | None = None
        self.recall = 1.0
        if approximate:
            try:
                self._neighbours = Neighbours(folder, self._store.hash, self._encoder.name)
            except BaseException:
                self._store.close()
                raise
            self.recall = self._neighbours.recall

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

    def _search(self, queries: list[str], k: int) -> list[list[Hit]]:
        found = [self._rows(query, k) if words(query) else [] for query in queries]
        passages = self._store.by_rows(sorted({row for hits in found for row, _ in hits}))
        return [[Hit(passages[row], score) for row, score in hits] for hits in found]

    def _rows(self, query: str, k: int) -> list[tuple[int, float]]:
        vector = encode_queries(self._encoder, [query])[0]
        if self._neighbours is not None:
            # More than requested, so that equal scores are returned in the order of the corpus.
            near = self._neighbours.nearest(vector, k)
            return _ranked(near, self._vectors[near] @ vector, k)
        total = len(self._vectors)
        scores = np.concatenate(
            [self._vectors[start : start + _ROWS] @ vector for start in range(0, total, _ROWS)]
        )
        least = np.partition(scores, total - min(k, total))[total - min(k, total)]
        rows = np.flatnonzero(scores >= least)
        return _ranked(rows, scores[rows], k)


def _ranked(rows: NDArray[Any], scores: NDArray[np.float32], k: int) -> list[tuple[int, float]]:
    order = np.lexsort((rows, -scores))[:k]
    return [(int(rows[i]), float(scores[i])) for i in order]


def _vectors(folder: Path, state: dict[str, Any]) -> NDArray[np.float32]:
    size = int(state.get("size") or 0)
    rows = int(state["rows"])
    size = size or (folder / _VECTORS).stat().st_size // (4 * rows)
    return np.memmap(folder / _VECTORS, np.float32, "r", shape=(rows, size))


def _state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError):
        return {}
    return state


def _encode(
    store: PassageStore,
    folder: Path,
    encoder: Encoder,
    done: int,
    on_progress: Callable[[int], None] | None,
) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / _VECTORS
    passages = itertools.islice(store.scan(), done, None)
    with file.open("r+b" if done else "wb") as out:
        out.truncate(done * encoder.size * 4)  # a killed build may have left half a chunk
        out.seek(0, os.SEEK_END)
        while chunk := list(itertools.islice(passages, _CHUNK)):
            texts = [f"{p.title}. {p.text}" if p.title else p.text for p in chunk]
            encode_passages(encoder, texts).astype(np.float32).tofile(out)
            out.flush()
            os.fsync(out.fileno())
            done += len(chunk)
            state = {"hash": store.hash, "encoder": encoder.name, "rows": done}
            part = folder / f"{_STATE}.part"
            part.write_text(json.dumps(state))
            part.replace(folder / _STATE)
            if on_progress is not None:
                on_progress(done)
