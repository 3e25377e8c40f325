"""Recording the answers of an engine, and replaying them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import NotRecorded
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RecordingEngine", "ReplayEngine"]


class RecordingEngine(SearchEngine):
    """Appends every answer of an engine to a file before it is returned.

    Args:
        engine: the engine; closed with this one.
        path: a JSON-lines file, created if missing.
    """

    def __init__(self, engine: SearchEngine, path: str | Path) -> None:
        self.name = engine.name
        self.live = engine.live
        self.engine = engine
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._turn = asyncio.Lock()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        found = await self.engine.search(queries, k)
        lines: list[Any] = [
            {"query": query, "k": k, "hits": [[asdict(h.passage), h.score] for h in hits]}
            for query, hits in zip(queries, found, strict=True)
        ]
        await self._write(lines)
        return found

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        found = await self.engine.get(ids)
        pairs = zip(ids, found, strict=True)
        await self._write([{"id": name, "passage": p and asdict(p)} for name, p in pairs])
        return found

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    async def _write(self, lines: list[Any]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        async with self._turn:
            await asyncio.to_thread(self._append, text)

    def _append(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)


class ReplayEngine(SearchEngine):
    """Replays the file of a :class:`RecordingEngine`; the last answer to a query is used.

    Args:
        path: the record.

    Raises:
        InvalidInput: it can't be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = f"replay:{path}"
        self._searches: dict[tuple[str, int], list[Hit]] = {}
        self._passages: dict[str, Passage | None] = {}
        try:
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                self._read(json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"record {path} can't be read: {error!r}") from error

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`.

        Raises:
            NotRecorded: a query was never recorded with this ``k``.
        """
        check_query(k)
        for query in queries:
            if (query, k) not in self._searches:
                raise NotRecorded(f"{self.name}: the query {query!r} (k={k}) was never recorded")
        return [list(self._searches[query, k]) for query in queries]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return [self._passages.get(name) for name in ids]

    def _read(self, line: dict[str, Any]) -> None:
        if "query" in line:
            hits = [Hit(Passage(**passage), float(score)) for passage, score in line["hits"]]
            self._searches[line["query"], int(line["k"])] = hits
            for hit in hits:
                for name in filter(None, (hit.passage.id, hit.passage.url)):
                    self._passages[name] = hit.passage
        else:
            passage = line["passage"]
            self._passages[line["id"]] = Passage(**passage) if passage else None
