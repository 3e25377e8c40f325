"""The client of retrieval servers: `POST /retrieve` and `POST /access`."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import SearchUnavailable
from trajgym.envs.search._text import passage_id, split_contents, words
from trajgym.envs.search._wire import JsonClient, Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RetrievalClient", "Seen"]


class Seen:
    """The last few thousand passages that were found; `open` looks them up.

    Args:
        most: how many.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._kept: OrderedDict[str, Passage] = OrderedDict()

    def add(self, passage: Passage) -> Passage:
        """Remember a passage by id and URL, and return it."""
        for name in filter(None, (passage.id, passage.url)):
            self._kept[name] = passage
            self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return passage

    def get(self, name: str) -> Passage | None:
        """Return a passage by id or URL, None if it is not remembered."""
        return self._kept.get(name)


class RetrievalClient(SearchEngine):
    """An engine behind a server that implements Search-R1's ``POST /retrieve``, such as our own.

    Both forms of answer are accepted: with scores (``{"document": ..., "score": ...}``) and
        without.
    Passages without score get ``1 / rank``. Passages that were not found before are opened by
    ASearcher's ``POST /access``, if the server supports it.

    Args:
        base_url: the server; a trailing ``/retrieve`` is dropped.
        patience: deadlines and retries.
        scores: ask for scores; False for servers that can't give them.
    """

    def __init__(
        self, base_url: str, *, patience: Patience | None = None, scores: bool = True
    ) -> None:
        base = base_url.rstrip("/").removesuffix("/retrieve")
        self.name = f"retrieval:{base}"
        self._scores = scores
        self._seen = Seen()
        self._http = JsonClient(base, patience)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        asked = [query for query in queries if words(query)]
        if not asked:
            return [[] for _ in queries]
        body = {"queries": asked, "topk": k, "return_scores": self._scores}
        answer = await self._http.post("/retrieve", body)
        rows = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or len(rows) != len(asked):
            raise SearchUnavailable(
                f"{self._http.base_url}/retrieve: expected `result` with {len(asked)} lists, got "
                f"{str(answer)[:200]}",
            )
        found = iter([self._hits(row)[:k] for row in rows])
        return [next(found) if words(query) else [] for query in queries]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        known = {name: self._seen.get(name) for name in ids}
        missing = [name for name, passage in known.items() if passage is None]
        if missing:
            known.update(zip(missing, await self._access(missing), strict=True))
        return [known[name] for name in ids]

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _access(self, names: list[str]) -> list[Passage | None]:
        answer = await self._http.post("/access", {"urls": names})
        rows = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or len(rows) != len(names):
            raise SearchUnavailable(f"{self._http.base_url}/access: unexpected {str(answer)[:200]}")
        return [
            self._seen.add(_passage({"id": name, **row})) if isinstance(row, dict) else None
            for name, row in zip(names, rows, strict=True)
        ]

    def _hits(self, row: Any) -> list[Hit]:
        try:
            found = []
            for rank, item in enumerate(row, 1):
                wrapped = "document" in item
                passage = _passage(item["document"] if wrapped else item)
                score = float(item["score"]) if wrapped else 1.0 / rank
                found.append(Hit(self._seen.add(passage), score))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise SearchUnavailable(
                f"{self._http.base_url}/retrieve: a hit that is none: {str(row)[:200]}",
            ) from error
        return found


def _passage(document: dict[str, Any]) -> Passage:
    if "contents" in document:
        title, text = split_contents(str(document["contents"]))
    else:
        title, text = str(document.get("title") or ""), str(document["text"])
    name = document.get("id")
    own = passage_id(title, text) if name is None else str(name)
    return Passage(own, title, text, str(document.get("url") or ""))
