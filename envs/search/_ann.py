"""Approximate nearest neighbours: an HNSW graph built by usearch, with measured recall."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from trajgym.envs.search._errors import IndexMismatch
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["HNSWSettings", "Neighbours", "build_neighbours"]

_GRAPH = "graph.usearch"
_STATE = "graph.json"
_CHUNK = 8192
_SAMPLE, _K = 200, 10


class HNSWSettings(BaseModel):
    """How an HNSW graph is built and searched; the graph records its settings and recall.

    Larger numbers find more of the nearest passages, and take more time and memory.

    Attributes:
        connectivity: neighbours of each passage (``M`` of the paper by Malkov and Yashunin).
        expansion_add: candidates while a passage is added (``efConstruction``).
        expansion_search: candidates of a search (``ef``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    connectivity: int = Field(default=24, ge=2, le=512)
    expansion_add: int = Field(default=200, ge=1)
    expansion_search: int = Field(default=200, ge=1)


def build_neighbours(
    folder: Path,
    vectors: NDArray[np.float32],
    content: str,
    encoder: str,
    settings: HNSWSettings | None = None,
) -> bool:
    """Build the graph of a folder of vectors, measure its recall at 10, and write both.

    Recall is measured with 200 vectors of the corpus after adding noise, so that no query is
    identical to a stored vector.

    Args:
        folder: where the files go.
        vectors: float32 ``[N, size]``, of length 1 each.
        content: hash of the passages.
        encoder: name of the encoder of the vectors.
        settings: None keeps the graph that exists, or uses the defaults.

    Returns:
        False if the graph exists already, with these settings.

    Raises:
        MissingExtra: usearch is not installed.
    """
    wanted = {"hash": content, "encoder": encoder, "rows": len(vectors)}
    known = _state(folder)
    if known.items() >= wanted.items() and settings in (None, _settings(known)):
        return False
    settings = settings or HNSWSettings()
    graph = _graph(vectors.shape[1], settings)
    for start in range(0, len(vectors), _CHUNK):
        block = np.ascontiguousarray(vectors[start : start + _CHUNK])
        graph.add(np.arange(start, start + len(block)), block)
    part = folder / f"{_GRAPH}.part"
    graph.save(str(part))
    part.replace(folder / _GRAPH)
    state = {
        **wanted,
        "size": vectors.shape[1],
        "settings": settings.model_dump(),
        f"recall@{_K}": _recall(graph, vectors, settings.expansion_search),
    }
    (folder / _STATE).write_text(json.dumps(state))
    return True


class Neighbours:
    """A graph that :func:`build_neighbours` wrote, memory-mapped.

    Attributes:
        recall: what was measured when it was built.
        settings: what it was built with.

    Raises:
        IndexMismatch: there is no graph, or it was built from other vectors.
        MissingExtra: usearch is not installed.
    """

    def __init__(self, folder: Path, content: str, encoder: str) -> None:
        state = _state(folder)
        if (state.get("hash"), state.get("encoder")) != (content, encoder):
            raise IndexMismatch(
                f"{folder}: no graph for approximate search; run `trajgym search index --out "
                f"{folder.parent} --with ann`",
            )
        self.recall = float(state[f"recall@{_K}"])
        self._rows = int(state["rows"])
        self.settings = _settings(state)
        self._graph = _graph(int(state["size"]), self.settings)
        self._graph.view(str(folder / _GRAPH))

    def nearest(self, vector: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """Return the rows of at least ``k`` near vectors, unordered.

        The same candidates are examined for every ``k`` up to half of ``expansion_search``, so that
        a smaller ``k`` returns a prefix of a larger one.
        """
        most = min(self._rows, max(self.settings.expansion_search, 2 * k))
        return np.asarray(self._graph.search(vector, most).keys, np.int64)


def _settings(state: dict[str, Any]) -> HNSWSettings:
    return HNSWSettings.model_validate(state.get("settings", {}))


def _graph(size: int, settings: HNSWSettings) -> Any:
    try:
        from usearch.index import Index
    except ImportError as error:
        raise MissingExtra("usearch", "search-dense") from error
    return Index(
        ndim=size,
        metric="ip",
        dtype="f16",
        connectivity=settings.connectivity,
        expansion_add=settings.expansion_add,
        expansion_search=settings.expansion_search,
    )


def _recall(graph: Any, vectors: NDArray[np.float32], expansion: int) -> float:
    chance = np.random.default_rng(0)
    rows = chance.choice(len(vectors), min(_SAMPLE, len(vectors)), replace=False)
    exactly = vectors[np.sort(rows)].astype(np.float64)
    noisy = exactly + chance.normal(0.0, 0.5 / np.sqrt(exactly.shape[1]), exactly.shape)
    queries = (noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32)
    k = min(_K, len(vectors))
    found = 0
    for query in queries:
        scores = np.concatenate(
            [vectors[at : at + 65_536] @ query for at in range(0, len(vectors), 65_536)]
        )
        exact = set(np.argpartition(-scores, k - 1)[:k].tolist())
        most = min(len(vectors), max(expansion, 2 * k))
        near = np.asarray(graph.search(query, most).keys, np.int64)
        best = near[np.argsort(-(vectors[near] @ query), kind="stable")[:k]]
        found += len(exact & set(best.tolist()))
    return round(found / (k * len(queries)), 4)


def _state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError):
        return {}
    return state
