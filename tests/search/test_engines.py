"""Engines: the same promises for every one, and what each adds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.search.serving import answering, running
from trajgym.envs.faults import fault_of
from trajgym.envs.search import (
    BM25Engine,
    FusedEngine,
    Hit,
    OpenSearchEngine,
    Passage,
    PooledEngine,
    RecordingEngine,
    ReplayEngine,
    RetrievalClient,
    SearchEngine,
    SearchUnavailable,
    SearxngEngine,
    SqliteEngine,
    build_bm25,
    build_index,
    check_engine,
    open_engine,
    search_app,
)
from trajgym.trajectory import ConformanceError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

QUERIES = [
    "Who taught the architect?",
    "island main export",
    'the "guild" AND (seat OR NEAR) * ^ -emblem: it\'s',
    "bell founding",
]


@pytest.mark.parametrize("kind", ["sqlite", "bm25", "fused", "pooled", "server", "replay"])
async def test_every_engine_keeps_the_promises(kind: str, index: Path, tmp_path: Path) -> None:
    """Order, ties, batches, empty queries and opening by id work alike in all engines."""
    async with SqliteEngine(index) as plain:
        if kind == "server":
            async with running(search_app(SqliteEngine(index))) as url:
                async with RetrievalClient(url) as client:
                    assert len(await check_engine(client, QUERIES)) == 10
            return
        if kind == "replay":
            recording = RecordingEngine(plain, tmp_path / "record.jsonl")
            await check_engine(recording, QUERIES)
            engine: SearchEngine = ReplayEngine(tmp_path / "record.jsonl")
        elif kind == "bm25":
            engine = BM25Engine(index, compiled=False)
        elif kind == "fused":
            engine = FusedEngine([SqliteEngine(index), BM25Engine(index, compiled=False)])
        else:
            engine = PooledEngine(SqliteEngine(index)) if kind == "pooled" else plain
        async with engine:
            assert len(await check_engine(engine, QUERIES)) == 10


@pytest.mark.parametrize("bm25", [False, True])
async def test_ties_are_in_the_order_of_the_corpus(tmp_path: Path, bm25: bool) -> None:
    """Two hundred equal passages come in their order, however many are asked for."""
    passages = [Passage(f"p{i:03d}", "Same", "the same few words") for i in range(200)]
    build_index([*passages, *(Passage(f"x{i}", "", f"noise{i}") for i in range(300))], tmp_path)
    build_bm25(tmp_path)
    engine = BM25Engine(tmp_path, compiled=False) if bm25 else SqliteEngine(tmp_path)
    async with engine:
        for k in (1, 7, 150):
            hits = (await engine.search(["same words"], k))[0]
            assert [hit.passage.id for hit in hits] == [f"p{i:03d}" for i in range(k)]


async def test_bm25_ranks_as_sqlite_does(index: Path) -> None:
    """Both find the same passages: one reads the word lists of the other."""
    queries = ["salt trader voyage", "founded bell founding town", "novel published"]
    async with SqliteEngine(index) as one, BM25Engine(index, compiled=False) as two:
        for ours, theirs in zip(
            await one.search(queries, 5), await two.search(queries, 5), strict=True
        ):
            assert {h.passage.id for h in ours} & {h.passage.id for h in theirs}


async def test_a_slow_query_is_stopped(index: Path) -> None:
    """A query over its deadline ends as an engine that is not available."""
    async with SqliteEngine(index, seconds=0.0) as engine:
        # SQLite looks at the clock every ten thousand steps: some queries end before.
        crowd = [f"town island number{i} the" for i in range(100)]
        with pytest.raises(SearchUnavailable, match="no answer within 0 s"):
            await engine.search(crowd, 300)


class Counting(SearchEngine):
    """Notes every call; can be made to wait or to fail."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls.append(list(queries))
        await self.gate.wait()
        if "bad" in queries:
            raise SearchUnavailable("down")
        return [[Hit(Passage(query, "", query), 1.0)] for query in queries]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        return [None for _ in ids]


async def test_sessions_share_batches_and_answers() -> None:
    """Queries of one round go out once and together; asked again, they don't go out at all."""
    inner = Counting()
    async with PooledEngine(inner) as pooled:
        answers = await asyncio.gather(*(pooled.search([q], 3) for q in ("a", "b", "a")))
        assert inner.calls == [["a", "b"]]
        assert [row[0][0].passage.id for row in answers] == ["a", "b", "a"]
        await pooled.search(["b", "c"], 3)
        assert inner.calls == [["a", "b"], ["c"]]


async def test_a_cancelled_waiter_leaves_the_others_their_answer() -> None:
    """Two sessions wait for one query; cancelling one does not harm the other."""
    inner = Counting()
    inner.gate.clear()
    async with PooledEngine(inner) as pooled:
        first, second = (asyncio.create_task(pooled.search(["q"], 1)) for _ in range(2))
        while not inner.calls:
            await asyncio.sleep(0)
        first.cancel()
        inner.gate.set()
        assert (await second)[0][0].passage.id == "q"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_failures_are_not_kept() -> None:
    """An engine that failed once is asked again."""
    inner = Counting()
    async with PooledEngine(inner) as pooled:
        for _ in range(2):
            with pytest.raises(SearchUnavailable):
                await pooled.search(["bad"], 1)
        assert inner.calls == [["bad"], ["bad"]]


async def test_an_engine_that_forgets_queries_leaves_nobody_waiting() -> None:
    """Fewer lists of hits than queries are the engine's failure, not a wait without end."""

    class Short(Counting):
        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            return (await super().search(queries, k))[:-1]

    async with asyncio.timeout(60), PooledEngine(Short()) as pooled:
        with pytest.raises(SearchUnavailable, match="returned 1 lists of hits for 2 queries"):
            await pooled.search(["a", "b"], 1)


async def test_a_part_of_a_fusion_that_is_down_is_named() -> None:
    """The failure is the engine's own, not one of a group of tasks, and so is its part."""
    fused = FusedEngine([Counting(), Counting()])
    with pytest.raises(SearchUnavailable, match=r"^down") as caught:
        await fused.search(["bad"], 1)
    assert fault_of(caught.value).part == "search"


async def test_closing_frees_those_who_wait() -> None:
    """No call waits for an engine that is closed."""
    inner = Counting()
    inner.gate.clear()
    pooled = PooledEngine(inner)
    waiter = asyncio.create_task(pooled.search(["q"], 1))
    while not inner.calls:
        await asyncio.sleep(0)
    await pooled.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiter, 60)


async def test_fusion_prefers_what_both_find() -> None:
    """A passage that two engines rank second beats those that one ranks first."""

    class Fixed(Counting):
        def __init__(self, *ids: str) -> None:
            super().__init__()
            self.ids = ids

        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            return [[Hit(Passage(i, "", i), 1.0) for i in self.ids[:k]] for _ in queries]

    fused = FusedEngine([Fixed("a", "both"), Fixed("b", "both")])
    hits = (await fused.search(["q"], 3))[0]
    assert [hit.passage.id for hit in hits] == ["both", "a", "b"]
    assert hits[0].score == pytest.approx(2 / 62)


async def test_the_checker_notices_a_broken_engine(index: Path) -> None:
    """An engine whose order changes between calls is named."""

    class Flaky(SqliteEngine):
        turn = 0

        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            self.turn += 1
            found = await super().search(queries, k)
            return [[h._replace(score=0.0) for h in hits][:: (-1) ** self.turn] for hits in found]

    async with Flaky(index) as engine:
        with pytest.raises(ConformanceError, match="the same again gives the same"):
            await check_engine(engine, QUERIES)


async def opensearch(request: Any) -> Any:
    """A very small OpenSearch: two documents, matching by words."""
    docs = {"1": ("Salt", "tide salt of the reach"), "2": ("Eel", "smoked eel and tide salt")}

    def hit(name: str) -> dict[str, Any]:
        title, text = docs[name]
        return {"_id": name, "_source": {"title": title, "text": text}}

    if request.url.path == "/corpus/_mget":
        wanted = (await request.json())["ids"]
        found = [
            {**hit(n), "found": True} if n in docs else {"_id": n, "found": False} for n in wanted
        ]
        return {"docs": found}
    import json

    lines = [json.loads(line) for line in (await request.body()).splitlines()]
    assert request.headers["content-type"] == "application/x-ndjson"
    assert [head["index"] for head in lines[::2]] == ["corpus"] * (len(lines) // 2)
    answers = []
    for body in lines[1::2]:
        assert body["sort"] == [{"_score": "desc"}, {"id": "asc"}]
        query = body["query"]["multi_match"]["query"]
        if query == "broken":
            answers.append({"error": {"type": "search_phase_execution_exception"}})
            continue
        scored = [
            {**hit(n), "_score": float(sum(w in text for w in query.split()))}
            for n, (_, text) in docs.items()
        ]
        best = sorted((s for s in scored if s["_score"]), key=lambda s: (-s["_score"], s["_id"]))
        answers.append({"hits": {"hits": best[: body["size"]]}})
    return {"responses": answers}


async def test_opensearch() -> None:
    """The client keeps the promises against the REST interface, and passes errors on."""
    async with running(answering("/{rest:path}", opensearch)) as url:
        async with OpenSearchEngine(url, "corpus", auth=("me", "secret")) as engine:
            assert len(await check_engine(engine, ["tide salt", "eel"])) == 10
            with pytest.raises(SearchUnavailable, match="search_phase_execution_exception"):
                await engine.search(["broken"], 2)


async def searxng(request: Any) -> Any:
    """A very small SearXNG."""
    assert request.query_params["format"] == "json"
    query = request.query_params["q"]
    page = {"url": "https://example.org/1", "title": "One", "content": f"about {query}"}
    return {"results": [page, {**page, "url": "https://example.org/2"}, page, {"title": "x"}]}


async def test_the_live_web_is_off_until_allowed_and_can_be_replayed(tmp_path: Path) -> None:
    """A live engine needs web=true; its record gives the same hits without a server."""
    record = tmp_path / "web.jsonl"
    async with running(answering("/search", searxng, "GET")) as url:
        settings = {"kind": "searxng", "url": url, "record": str(record)}
        with pytest.raises(InvalidInput, match="allow it with web=true"):
            open_engine(settings)
        async with open_engine(settings, web=True) as live:
            found = await live.search(["storms", "eels"], 3)
            page = (await live.get(["https://example.org/1"]))[0]
        assert [h.passage.url for h in found[0]] == [
            "https://example.org/1",
            "https://example.org/2",
        ]
        assert page is not None
    async with open_engine({"kind": "replay", "path": str(record)}) as replay:
        assert await replay.search(["storms", "eels"], 3) == found
        assert (await replay.get(["https://example.org/1"]))[0] == page
        with pytest.raises(SearchUnavailable, match="never recorded"):
            await replay.search(["comets"], 3)


async def test_a_web_engine_that_fails_says_so() -> None:
    """No group of exceptions reaches the caller."""

    async def html(request: Any) -> Any:
        from starlette.responses import HTMLResponse

        return HTMLResponse("<html>")

    async with running(answering("/search", html, "GET")) as url:
        async with SearxngEngine(url) as engine:
            with pytest.raises(SearchUnavailable, match="answered no JSON"):
                await engine.search(["a", "b"], 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "nope"}, "kind"),
        ({"kind": "index", "depth": 3}, "depth"),
        ("nowhere/at/all", "no index here"),
    ],
)
def test_bad_engine_settings(settings: Any, message: str) -> None:
    """Invalid settings of an engine are reported before any session runs."""
    with pytest.raises(InvalidInput, match=message):
        open_engine(settings)


async def test_sessions_share_one_engine_and_the_last_one_closes_it(index: Path) -> None:
    """Users of one configuration get the same engine, opened once, also where one is cancelled."""
    from trajgym.envs.search._open import release, shared_engine

    waiting = [asyncio.create_task(shared_engine(str(index))) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    engines = await asyncio.gather(*waiting[1:])
    assert len(set(map(id, engines))) == 1
    for engine in engines[1:]:
        await release(engine)
    assert (await engines[0].search(["salt"], 1))[0]
    await release(engines[0])
    again = await shared_engine(str(index))
    assert again is not engines[0]
    await release(again)
    with pytest.raises(InvalidInput, match="no index here"):
        await shared_engine("nowhere")
