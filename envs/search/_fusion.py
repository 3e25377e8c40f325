"""Several engines as one: reciprocal-rank fusion."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["FusedEngine", "words_engine"]


class FusedEngine(SearchEngine):
    """Ranks passages by the sum of ``1 / (constant + rank)`` over several engines.

    Passages of equal sum are ordered by the first engine that ranks them.

    Args:
        engines: over the same corpus; closed with this one.
        constant: the larger, the less the first ranks stand out; 60 is customary.
        depth: minimum number of hits requested from each engine.
    """

    def __init__(
        self, engines: Sequence[SearchEngine], *, constant: int = 60, depth: int = 100
    ) -> None:
        if not engines:
            raise InvalidInput("fusion needs at least one engine")
        self.name = f"fused:{'+'.join(engine.name for engine in engines)}"
        self.live = any(engine.live for engine in engines)
        self._engines = list(engines)
        self._constant = constant
        self._depth = depth

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        with first_error():
            async with asyncio.TaskGroup() as group:
                asked = [
                    group.create_task(engine.search(queries, max(k, self._depth)))
                    for engine in self._engines
                ]
        answers = [task.result() for task in asked]
        return [
            self._fused([answer[position] for answer in answers])[:k]
            for position in range(len(queries))
        ]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        found: dict[str, Passage] = {}
        for engine in self._engines:
            missing = [name for name in ids if name not in found]
            if missing:
                got = zip(missing, await engine.get(missing), strict=True)
                found.update({name: passage for name, passage in got if passage is not None})
        return [found.get(name) for name in ids]

    async def close(self) -> None:
        """Close every engine."""
        for engine in self._engines:
            await engine.close()

    def _fused(self, rankings: Sequence[Sequence[Hit]]) -> list[Hit]:
        sums: dict[str, float] = {}
        passages: dict[str, Passage] = {}
        for hits in rankings:
            for rank, hit in enumerate(hits, 1):
                name = hit.passage.id
                passages.setdefault(name, hit.passage)
                sums[name] = sums.get(name, 0.0) + 1.0 / (self._constant + rank)
        # sorted() is stable: equal sums keep their order of appearance.
        best = sorted(sums, key=lambda name: -sums[name])
        return [Hit(passages[name], sums[name]) for name in best]


def words_engine(index: Path) -> SearchEngine:
    """Return the BM25 engine of an index if its files were built, else SQLite's."""
    from trajgym.envs.search._bm25 import BM25Engine
    from trajgym.envs.search._sqlite import SqliteEngine

    return BM25Engine(index) if (index / "bm25").is_dir() else SqliteEngine(index)
