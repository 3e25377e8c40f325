"""The live web, through a metasearch server of one's own."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._retrieval import Seen
from trajgym.envs.search._text import words
from trajgym.envs.search._wire import JsonClient, Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SearxngEngine", "WebSearch"]


class WebSearch(SearchEngine):
    """An engine over the live web: off by default, since no answer can be had twice.

    Subclasses implement :meth:`find`. A passage is a page's title and snippet; its id is its URL;
    ``get`` knows the pages that were found before. Scores are ``1 / rank``. Record what it answers
    (``record`` in the engine's settings) to make trajectories that can be replayed.

    Args:
        most: calls at once.
    """

    live = True

    def __init__(self, *, most: int = 4) -> None:
        self._seen = Seen()
        self._slots = asyncio.Semaphore(most)

    @abstractmethod
    async def find(self, query: str, k: int) -> list[Passage]:
        """Return at most ``k`` pages, best first.

        Raises:
            SearchUnavailable: no answer in time.
        """

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._one(query, k)) for query in queries]
        except* SearchUnavailable as failures:
            raise failures.exceptions[0] from failures
        return [task.result() for task in asked]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return [self._seen.get(name) for name in ids]

    async def _one(self, query: str, k: int) -> list[Hit]:
        if not words(query):
            return []
        async with self._slots:
            pages = await self.find(query, k)
        distinct = {page.id: self._seen.add(page) for page in pages}
        return [Hit(page, 1.0 / rank) for rank, page in enumerate(distinct.values(), 1)][:k]


class SearxngEngine(WebSearch):
    """A SearXNG server whose settings allow the format ``json``.

    Args:
        base_url: of the server.
        engines: which of its engines to ask, separated by commas; its own choice if empty.
        language: of the results.
        patience: deadlines and retries.
    """

    def __init__(
        self,
        base_url: str,
        *,
        engines: str = "",
        language: str = "en",
        patience: Patience | None = None,
    ) -> None:
        super().__init__()
        self.name = f"searxng:{base_url}"
        self._more = {"engines": engines} if engines else {}
        self._language = language
        self._http = JsonClient(base_url, patience)

    async def find(self, query: str, k: int) -> list[Passage]:
        """See :meth:`WebSearch.find`."""
        asked = {"q": query, "format": "json", "language": self._language, **self._more}
        answer = await self._http.get("/search", asked)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list):
            raise SearchUnavailable(f"{self.name}: unexpected answer {str(answer)[:200]}")
        return [_page(result) for result in results if result.get("url")][:k]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


def _page(result: dict[str, Any]) -> Passage:
    url = str(result["url"])
    return Passage(url, str(result.get("title") or ""), str(result.get("content") or ""), url)
