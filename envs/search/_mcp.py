"""Search through a tool of an MCP server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.envs._retry import Transient
from trajgym.envs.search._engine import Passage
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._text import passage_id
from trajgym.envs.search._web import WebSearch
from trajgym.envs.search._wire import Endpoint, Patience
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["McpEngine"]

_LISTS = ("results", "result", "items", "documents")
_TEXTS = ("text", "content", "snippet", "description", "contents", "body")


class McpEngine(WebSearch):
    """Calls one tool of an MCP server over streamable HTTP, a connection per query.

    Results are read from structured content or JSON text (a list, or an object with a list, of
    objects with a title, a text and a URL); any other text is one passage.

    Args:
        url: URL of the server.
        tool: the name of the search tool.
        argument: the name of its argument for the query.
        patience: deadlines and retries.

    Raises:
        MissingExtra: `mcp` is not installed.
    """

    def __init__(
        self,
        url: str,
        tool: str = "search",
        *,
        argument: str = "query",
        patience: Patience | None = None,
    ) -> None:
        super().__init__()
        try:
            import mcp
        except ImportError as error:
            raise MissingExtra("mcp", "search-web") from error
        self._client: Any = mcp.Client
        self.name = f"mcp:{url}#{tool}"
        self._url = url
        self._tool = tool
        self._argument = argument
        self._endpoint = Endpoint(url, patience)

    async def find(self, query: str, k: int) -> list[Passage]:
        """See :meth:`WebSearch.find`."""
        try:
            result = await self._endpoint.call(lambda: self._call(query), _transient)
        except SearchUnavailable:
            raise
        except Exception as error:  # boundary: the SDK's errors share no class
            raise SearchUnavailable(f"{self.name}: {_cause(error)}") from error
        return _passages(result)[:k]

    async def _call(self, query: str) -> Any:
        async with self._client(self._url) as client:
            result = await client.call_tool(self._tool, {self._argument: query})
        if result.is_error:
            raise SearchUnavailable(f"{self.name}: the tool reports: {_text(result)[:300]}")
        return result


def _transient(error: Exception) -> Transient | None:
    return None if isinstance(error, SearchUnavailable) else Transient(_cause(error))


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _text(result: Any) -> str:
    return "\n".join(part.text for part in result.content if getattr(part, "text", None))


def _passages(result: Any) -> list[Passage]:
    found = list(_objects(result.structured_content))
    for part in [] if found else result.content:
        try:
            found += _objects(json.loads(getattr(part, "text", "") or ""))
        except ValueError:
            found.append({"text": part.text})
    return [_passage(item) for item in found if any(item.get(key) for key in (*_TEXTS, "title"))]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from [item] if isinstance(item, dict) else [{"text": str(item)}]
    elif isinstance(value, dict):
        inner = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
        yield from [value] if inner is None else _objects(inner)


def _passage(item: dict[str, Any]) -> Passage:
    title = str(item.get("title") or "")
    text = str(next((item[key] for key in _TEXTS if item.get(key)), ""))
    url = str(item.get("url") or item.get("link") or "")
    return Passage(str(item.get("id") or url or passage_id(title, text)), title, text, url)
