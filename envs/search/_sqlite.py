"""SQLite's full-text search: an engine without dependencies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._store import PassageStore
from trajgym.envs.search._text import words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["SqliteEngine"]

_QUERY = """
SELECT p.id, p.title, p.text, p.url, -found.rank FROM (
    SELECT rowid, rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?
) AS found JOIN passages AS p ON p.n = found.rowid ORDER BY found.rank, p.n
"""


class SqliteEngine(SearchEngine):
    """BM25 over stemmed words (Porter), suited to about 20,000 passages.

    Ties are in the order of the corpus. Larger corpora take tens of milliseconds per query, where
    :class:`BM25Engine` takes a fraction of a millisecond.

    Args:
        index: directory that :func:`build_index` wrote.
        seconds: limit for one query.

    Raises:
        IndexMismatch: no finished index is there.
    """

    def __init__(self, index: str | Path, *, seconds: float = 30.0) -> None:
        self.name = f"sqlite:{index}"
        self._seconds = seconds
        self._store = PassageStore(index)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        return await asyncio.to_thread(self._search, list(queries), k)

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return await asyncio.to_thread(self._store.by_ids, list(ids), self._seconds)

    async def close(self) -> None:
        """Close the file."""
        self._store.close()

    def _search(self, queries: list[str], k: int) -> list[list[Hit]]:
        found = []
        for query in queries:
            # Quoted, so that no word of a query is parsed as an operator.
            match = " OR ".join(f'"{word}"' for word in words(query))
            rows = []
            if match:
                with self._store.connection(self._seconds) as connection:
                    rows = connection.execute(_QUERY, (match, k)).fetchall()
            found.append([Hit(Passage(*row[:4]), row[4]) for row in rows])
        return found
