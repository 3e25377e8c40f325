"""The live web: one interface, and the search services behind it."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._pages import PageRefused
from trajgym.envs.search._retrieval import Seen
from trajgym.envs.search._text import words
from trajgym.envs.search._wire import JsonClient, Patience
from trajgym.trajectory._internal import first_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.search._pages import PageFetcher

__all__ = ["BraveEngine", "SearxngEngine", "SerperEngine", "WebSearch"]

_PAGES = 500
_MOST_BRAVE = 20
_log = logging.getLogger(__name__)


class WebSearch(SearchEngine):
    """An engine over the live web: off by default, since its answers change.

    Subclasses implement :meth:`find`. A passage is a page's title and snippet, with its URL as id.
    Scores are ``1 / rank``. ``get`` returns pages that were found before; with a fetcher it returns
    the text of any page, or the snippet where the page can't be read. Record the answers of an
    engine (``record`` in its settings) to make trajectories replayable.

    Args:
        most: concurrent calls.
        fetcher: reads whole pages; without one only titles and snippets are known.
    """

    live = True

    def __init__(self, *, most: int = 4, fetcher: PageFetcher | None = None) -> None:
        self._seen = Seen()
        self._fetcher = fetcher
        self._pages = Seen(_PAGES)
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
        with first_error():
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._one(query, k)) for query in queries]
        return [task.result() for task in asked]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        with first_error():
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._page(name)) for name in ids]
        return [task.result() for task in asked]

    async def _page(self, name: str) -> Passage | None:
        known = self._seen.get(name)
        if self._fetcher is None or not name.startswith(("http://", "https://")):
            return known
        if (page := self._pages.get(name)) is not None:
            return page
        try:
            async with self._slots:
                page = await self._fetcher.fetch(name)
        except (PageRefused, SearchUnavailable) as error:
            # A missing page is not a failure of the search.
            _log.info("%s", error)
            return known
        if known is not None:
            page = replace(page, title=page.title or known.title)
        return self._pages.add(page)

    async def _one(self, query: str, k: int) -> list[Hit]:
        if not words(query):
            return []
        async with self._slots:
            pages = await self.find(query, k)
        distinct = {page.id: self._seen.add(page) for page in pages}
        return [Hit(page, 1.0 / rank) for rank, page in enumerate(distinct.values(), 1)][:k]


class _HttpSearch(WebSearch):
    """A search service with a JSON interface.

    Args:
        name: for messages and records.
        base_url: URL of the service.
        headers: sent with every request.
        patience: deadlines and retries.
        fetcher: reads whole pages.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        headers: Mapping[str, str],
        patience: Patience | None,
        fetcher: PageFetcher | None,
    ) -> None:
        super().__init__(fetcher=fetcher)
        self.name = f"{name}:{base_url}"
        self._http = JsonClient(base_url, patience, headers)

    async def find(self, query: str, k: int) -> list[Passage]:
        """See :meth:`WebSearch.find`."""
        answer = await self._ask(query, k)
        try:
            return [page for item in self._results(answer) if (page := self._read(item)).url][:k]
        except (AttributeError, KeyError, TypeError) as error:
            raise SearchUnavailable(
                f"{self.name}: unexpected answer {str(answer)[:200]}"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    @abstractmethod
    async def _ask(self, query: str, k: int) -> Any:
        """Return the service's JSON answer."""

    @abstractmethod
    def _results(self, answer: Any) -> list[dict[str, Any]]:
        """Return the list of results in an answer."""

    @abstractmethod
    def _read(self, result: dict[str, Any]) -> Passage:
        """Return a result as a passage; its URL is empty if it has none."""


class SearxngEngine(_HttpSearch):
    """A SearXNG server whose settings allow the format ``json``.

    Args:
        base_url: URL of the server.
        engines: engines of the server to use, separated by commas; its default if empty.
        language: language of the results.
        patience: deadlines and retries.
        fetcher: reads whole pages.
    """

    def __init__(
        self,
        base_url: str,
        *,
        engines: str = "",
        language: str = "en",
        patience: Patience | None = None,
        fetcher: PageFetcher | None = None,
    ) -> None:
        super().__init__("searxng", base_url, {}, patience, fetcher)
        self._more = {"engines": engines} if engines else {}
        self._language = language

    async def _ask(self, query: str, k: int) -> Any:
        del k
        asked = {"q": query, "format": "json", "language": self._language, **self._more}
        return await self._http.get("/search", asked)

    def _results(self, answer: Any) -> list[dict[str, Any]]:
        return _list(answer["results"])

    def _read(self, result: dict[str, Any]) -> Passage:
        return _page(result.get("url"), result.get("title"), result.get("content"))


class SerperEngine(_HttpSearch):
    """A service with Serper's interface: ``POST /search`` and ``organic`` results.

    Args:
        api_key: sent as ``X-API-KEY``.
        base_url: URL of the service.
        country: country of the results, such as ``us``.
        language: language of the results.
        patience: deadlines and retries.
        fetcher: reads whole pages.
    """

    def __init__(
        self,
        api_key: str,
        *,
        base_url: str = "https://google.serper.dev",
        country: str = "us",
        language: str = "en",
        patience: Patience | None = None,
        fetcher: PageFetcher | None = None,
    ) -> None:
        super().__init__("serper", base_url, {"X-API-KEY": api_key}, patience, fetcher)
        self._more = {"gl": country, "hl": language}

    async def _ask(self, query: str, k: int) -> Any:
        return await self._http.post("/search", {"q": query, "num": k, **self._more})

    def _results(self, answer: Any) -> list[dict[str, Any]]:
        return _list(answer.get("organic", []))  # left out where nothing was found

    def _read(self, result: dict[str, Any]) -> Passage:
        return _page(result.get("link"), result.get("title"), result.get("snippet"))


class BraveEngine(_HttpSearch):
    """A service with Brave's interface: ``GET /res/v1/web/search`` and ``web.results``.

    Args:
        api_key: sent as ``X-Subscription-Token``.
        base_url: URL of the service.
        country: country of the results, such as ``us``.
        language: language of the results.
        patience: deadlines and retries.
        fetcher: reads whole pages.
    """

    def __init__(
        self,
        api_key: str,
        *,
        base_url: str = "https://api.search.brave.com",
        country: str = "us",
        language: str = "en",
        patience: Patience | None = None,
        fetcher: PageFetcher | None = None,
    ) -> None:
        headers = {"X-Subscription-Token": api_key, "Accept": "application/json"}
        super().__init__("brave", base_url, headers, patience, fetcher)
        self._more = {"country": country, "search_lang": language, "text_decorations": "false"}

    async def _ask(self, query: str, k: int) -> Any:
        asked = {"q": query, "count": str(min(k, _MOST_BRAVE)), **self._more}
        return await self._http.get("/res/v1/web/search", asked)

    def _results(self, answer: Any) -> list[dict[str, Any]]:
        return _list(answer.get("web", {}).get("results", []))

    def _read(self, result: dict[str, Any]) -> Passage:
        parts = [result.get("description") or "", *(result.get("extra_snippets") or [])]
        return _page(result.get("url"), result.get("title"), "\n".join(filter(None, parts)))


def _list(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _page(url: Any, title: Any, text: Any) -> Passage:
    address = str(url or "")
    return Passage(address, str(title or ""), str(text or ""), address)
