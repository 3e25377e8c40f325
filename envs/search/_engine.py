"""The interface of search engines, and its checker."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trajgym.trajectory import ConformanceError, InvalidInput
from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Hit", "Passage", "SearchEngine", "check_engine", "check_query"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that can be found.

    Args:
        id: unique in its corpus.
        title: title of the document that it is in; may be empty.
        text: the passage without its title.
        url: its source; may be empty.
    """

    id: str
    title: str
    text: str
    url: str = ""


class Hit(NamedTuple):
    """A passage that was found, with the engine's score; higher is better."""

    passage: Passage
    score: float


class SearchEngine(AsyncClosing):
    """Ranks passages for queries. One instance serves many sessions of one event loop.

    Attributes:
        name: for messages and records.
        live: results may change between two calls; such engines are off by default.
    """

    name: str = "engine"
    live: bool = False

    @abstractmethod
    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best ``k`` passages of each query, best first.

        The order of passages of equal score does not change between calls. A query without words
        returns no hits.

        Raises:
            SearchUnavailable: no answer in time.
            InvalidInput: ``k`` is not positive.
        """

    @abstractmethod
    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """Return passages by id or URL, None for those that the engine does not know.

        Raises:
            SearchUnavailable: no answer in time.
        """

    async def close(self) -> None:
        """Release the resources of the engine. Idempotent."""


def check_query(k: int) -> None:
    """Raise InvalidInput if ``k`` is not positive."""
    if k < 1:
        raise InvalidInput(f"search: k is {k}; ask for at least one passage")


async def check_engine(
    engine: SearchEngine, queries: Sequence[str], *, opens: bool = True
) -> list[str]:
    """Check that an engine keeps the promises that the environment relies on.

    Args:
        engine: the engine; it is not closed.
        queries: at least two that have hits.
        opens: whether ``get`` must know the passages that were found.

    Returns:
        The promises that were checked, as text.

    Raises:
        ConformanceError: a promise is not kept; the message names it.
    """
    kept = []

    def promise(holds: bool, words: str) -> None:
        if not holds:
            raise ConformanceError(f"check_engine: {engine.name}: not kept: {words}")
        kept.append(words)

    batch = await engine.search(queries, 5)
    promise(len(batch) == len(queries), "one list of hits per query, in order")
    promise(all(0 < len(hits) <= 5 for hits in batch), "at most k hits, and some")
    scores = [[hit.score for hit in hits] for hits in batch]
    promise(all(s == sorted(s, reverse=True) for s in scores), "best first")
    ids = [[hit.passage.id for hit in hits] for hits in batch]
    promise(all(len(set(row)) == len(row) for row in ids), "no passage twice")
    promise(await engine.search(queries, 5) == batch, "the same again gives the same")
    alone = [(await engine.search([query], 5))[0] for query in queries]
    promise([[h.passage.id for h in hits] for hits in alone] == ids, "batches don't matter")
    fewer = await engine.search(queries, 2)
    promise(
        [[h.passage.id for h in hits] for hits in fewer] == [row[:2] for row in ids],
        "fewer hits are the first of more",
    )
    promise(await engine.search([], 5) == [], "no query, no answer")
    promise(await engine.search(["?!"], 5) == [[]], "a query without words finds nothing")
    if opens:
        found = await engine.get([row[0] for row in ids] + ["no such passage"])
        expected: list[Passage | None] = [hits[0].passage for hits in batch]
        promise(found == [*expected, None], "passages open by id, unknown ones are None")
    return kept
