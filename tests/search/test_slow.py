"""What needs packages or machines beyond the main suite: MCP, a container."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.search.serving import running
from trajgym.envs import EnvSpec, Session
from trajgym.envs.search import (
    BM25Engine,
    McpEngine,
    Patience,
    RetrievalClient,
    SearchUnavailable,
    check_engine,
    load_tasks,
)
from trajgym.rollout import call

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def test_bm25_compiled(index: Path) -> None:
    """The compiled scorer finds what the plain one finds."""
    queries = ["salt trader", "bell founding town", "novel of the two comets"]
    async with BM25Engine(index) as fast, BM25Engine(index, compiled=False) as plain:
        await check_engine(fast, queries)
        for ours, theirs in zip(
            await fast.search(queries, 20), await plain.search(queries, 20), strict=True
        ):
            assert [h.passage.id for h in ours] == [h.passage.id for h in theirs]


async def test_mcp_search_server() -> None:
    """A real MCP server's tool is an engine; its refusals and its absence are different errors."""
    pytest.importorskip("mcp", reason="needs trajgym[search-web]")
    from mcp.server import MCPServer

    server = MCPServer("search")

    @server.tool()
    def search(query: str) -> list[dict[str, str]]:
        """Search."""
        if query == "forbidden":
            raise ValueError("not that one")
        page = {"title": "Salt", "snippet": f"about {query}", "url": "https://example.org/salt"}
        return [page, {"title": "Eel", "text": "eels", "link": "https://example.org/eel"}]

    quick = Patience(seconds=240.0, tries=2, first_wait=0.01)
    async with running(server.streamable_http_app()) as url:
        engine = McpEngine(f"{url}/mcp", patience=quick)
        hits = (await engine.search(["tides"], 5))[0]
        assert [h.passage.url for h in hits] == [
            "https://example.org/salt",
            "https://example.org/eel",
        ]
        assert hits[0].passage.text == "about tides"
        with pytest.raises(SearchUnavailable, match="the tool reports"):
            await engine.search(["forbidden"], 5)
    gone = McpEngine("http://127.0.0.1:9/mcp", patience=quick)
    with pytest.raises(SearchUnavailable, match=r"mcp:http://127\.0\.0\.1:9"):
        await gone.search(["x"], 1)


def test_questions_through_datasets(tmp_path: Path) -> None:
    """`hf:` loads a split by the library of that name."""
    (tmp_path / "train.jsonl").write_text('{"id": "1", "question": "Who?", "answer": "Ann"}\n')
    tasks = load_tasks(f"hf:{tmp_path}:train")
    assert [task.data["answers"] for task in tasks] == [["Ann"]]


@pytest.mark.skipif("TRAJGYM_SEARCH_URL" not in os.environ, reason="TRAJGYM_SEARCH_URL is not set")
async def test_a_server_that_runs_elsewhere() -> None:
    """The container (or any server of the built-in corpus) serves the environment."""
    url = os.environ["TRAJGYM_SEARCH_URL"]
    async with RetrievalClient(url) as client:
        assert len(await check_engine(client, ["Who taught the architect?", "salt"])) == 10
    spec = EnvSpec(id="search", config={"engine": url})
    local = EnvSpec(id="search")
    for task in load_tasks("builtin")[::8]:
        told: list[Any] = []
        for where in (spec, local):
            async with Session(where, task) as session:
                for message in where.resolve().script(task, 0)[:-1]:
                    await session.step(message)
                await session.step(call("answer", answer=task.data["answers"][0]))
            assert session.outcome is not None
            assert session.outcome.passed
            told.append([turn.observation for turn in session.turns])
        assert told[0] == told[1]
