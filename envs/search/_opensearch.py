"""OpenSearch and Elasticsearch, for corpora beyond one machine."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._text import words
from trajgym.envs.search._wire import JsonClient, Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OpenSearchEngine"]


class OpenSearchEngine(SearchEngine):
    """Searches an index whose documents have ``title``, ``text`` and perhaps ``url``.

    Uses the part of the REST interface that OpenSearch and Elasticsearch share (``_msearch``,
    ``_mget``). Equal scores are ordered by the field ``id``, which documents must have as a
    keyword, equal to their ``_id``.

    Args:
        base_url: URL of the cluster.
        index: its name.
        auth: user and password.
        patience: deadlines and retries.
        fields: fields to search, with boosts.
    """

    def __init__(
        self,
        base_url: str,
        index: str,
        *,
        auth: tuple[str, str] | None = None,
        patience: Patience | None = None,
        fields: Sequence[str] = ("title^2", "text"),
    ) -> None:
        headers = {}
        if auth is not None:
            token = base64.b64encode(":".join(auth).encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        self.name = f"opensearch:{base_url}/{index}"
        self._index = index
        self._fields = list(fields)
        self._http = JsonClient(base_url, patience, headers)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        asked = [query for query in queries if words(query)]
        if not asked:
            return [[] for _ in queries]
        lines: list[Any] = []
        for query in asked:
            lines += [{"index": self._index}, self._query(query, k)]
        answer = await self._http.post_lines("/_msearch", lines)
        responses = answer.get("responses") if isinstance(answer, dict) else None
        if not isinstance(responses, list) or len(responses) != len(asked):
            raise SearchUnavailable(f"{self.name}: unexpected answer {str(answer)[:200]}")
        found = iter([self._hits(response) for response in responses])
        return [next(found) if words(query) else [] for query in queries]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        if not ids:
            return []
        answer = await self._http.post(f"/{self._index}/_mget", {"ids": list(ids)})
        docs = answer.get("docs") if isinstance(answer, dict) else None
        if not isinstance(docs, list) or len(docs) != len(ids):
            raise SearchUnavailable(f"{self.name}: unexpected answer {str(answer)[:200]}")
        return [_passage(doc) if doc.get("found") else None for doc in docs]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _query(self, query: str, k: int) -> dict[str, Any]:
        match = {"query": query, "fields": self._fields, "type": "most_fields"}
        return {
            "size": k,
            "query": {"multi_match": match},
            "sort": [{"_score": "desc"}, {"id": "asc"}],
            "track_scores": True,
        }

    def _hits(self, response: dict[str, Any]) -> list[Hit]:
        if "error" in response:
            raise SearchUnavailable(f"{self.name}: {str(response['error'])[:300]}")
        try:
            return [Hit(_passage(hit), float(hit["_score"])) for hit in response["hits"]["hits"]]
        except (KeyError, TypeError, ValueError) as error:
            raise SearchUnavailable(f"{self.name}: a hit that is none: {error!r}") from error


def _passage(document: dict[str, Any]) -> Passage:
    source = document["_source"]
    text, title = str(source.get("text") or ""), str(source.get("title") or "")
    return Passage(str(document["_id"]), title, text, str(source.get("url") or ""))
