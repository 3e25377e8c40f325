"""Reranking the first hits of an engine with a cross-encoder."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.search._encoders import Reranker

__all__ = ["RerankedEngine"]


class RerankedEngine(SearchEngine):
    """Requests ``depth`` hits from an engine and returns the best by a reranker's scores.

    Passages of equal score keep the engine's order. Hits beyond ``depth`` are never returned, so
    that a smaller ``k`` returns a prefix of a larger one.

    Args:
        engine: the engine; closed with this one.
        reranker: scores pairs of query and passage.
        depth: number of hits that are reranked.

    Raises:
        InvalidInput: ``depth`` is not positive.
    """

    def __init__(self, engine: SearchEngine, reranker: Reranker, *, depth: int = 30) -> None:
        if depth < 1:
            raise InvalidInput(f"reranking: depth is {depth}; it must be at least 1")
        self.name = f"{engine.name}, reranked by {reranker.name}"
        self.live = engine.live
        self._engine = engine
        self._reranker = reranker
        self._depth = depth

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        found = await self._engine.search(queries, self._depth)
        return await asyncio.to_thread(
            lambda: [
                self._ranked(query, hits)[:k] for query, hits in zip(queries, found, strict=True)
            ]
        )

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return await self._engine.get(ids)

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()

    def _ranked(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        if not hits:
            return []
        texts = [f"{hit.passage.title}\n{hit.passage.text}".strip() for hit in hits]
        scores = self._reranker.scores(query, texts).tolist()
        ranked = [Hit(hit.passage, score) for hit, score in zip(hits, scores, strict=True)]
        return sorted(ranked, key=lambda hit: -hit.score)
