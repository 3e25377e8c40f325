"""The retrieval server and its client, over real sockets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import PlainTextResponse, Response

from tests.clock import Forward
from tests.ports import free_port
from tests.search.serving import answering, running
from trajgym.envs import AgentClock, Budgets, EnvSpec, Session
from trajgym.envs._clock import SharedClock, off_the_clock
from trajgym.envs.search import (
    Patience,
    RetrievalClient,
    SearchUnavailable,
    SqliteEngine,
    load_tasks,
    search_app,
)
from trajgym.rollout import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = load_tasks("builtin")[0]
QUICK = Patience(seconds=60.0, tries=3, first_wait=0.001, longest_wait=0.001)


def post(url: str, body: Any) -> Any:
    """What a client without any library of ours does."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read())


def as_searchers_read_it(result: list[Any]) -> str:
    """Join one query's hits as the field's trainers do, from the wire form."""
    text = ""
    for number, item in enumerate(result, 1):
        title, *rest = item["document"]["contents"].split("\n")
        text += f"Doc {number}(Title: {title}) {chr(10).join(rest)}\n"
    return text


async def test_a_trainers_client_is_served(index: Path) -> None:
    """Both forms of /retrieve, the default topk, and /access, as other trainers ask for them."""
    async with running(search_app(SqliteEngine(index), topk=2)) as url:
        query = "Jorollen Chronicle"
        body = {"queries": [query, "salt"], "topk": 3, "return_scores": True}
        scored = (await asyncio.to_thread(post, f"{url}/retrieve", body))["result"]
        assert [len(row) for row in scored] == [3, 3]
        text = as_searchers_read_it(scored[0])
        assert text.startswith('Doc 1(Title: "The Jorollen Chronicle") The Jorollen Chronicle is a')
        body = {"queries": [query], "topk": None, "return_scores": False}
        plain = (await asyncio.to_thread(post, f"{url}/retrieve", body))["result"]
        assert plain[0] == [item["document"] for item in scored[0][:2]]
        urls = [plain[0][0]["url"], "https://nowhere.example"]
        pages = (await asyncio.to_thread(post, f"{url}/access", {"urls": urls}))["result"]
        assert pages[0]["contents"] == plain[0][0]["contents"]
        assert pages[1] is None


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("retrieve", b"{", 422),
        ("retrieve", {"queries": "one"}, 422),
        ("retrieve", {"queries": ["a"], "topk": 0}, 422),
        ("retrieve", {"queries": ["a"] * 2000}, 422),
        ("retrieve", b" " * (9 << 20), 413),
        ("access", {}, 422),
        ("nothing", {}, 404),
    ],
)
async def test_bad_requests(index: Path, path: str, body: Any, status: int) -> None:
    """A bad request is answered with a 4xx, and the server continues."""
    async with running(search_app(SqliteEngine(index))) as url:
        with pytest.raises(urllib.error.HTTPError) as caught:
            await asyncio.to_thread(post, f"{url}/{path}", body)
        assert caught.value.code == status
        caught.value.close()
        body = {"queries": ["salt"]}
        assert (await asyncio.to_thread(post, f"{url}/retrieve", body))["result"][0]


async def test_the_client_reads_answers_without_scores(index: Path) -> None:
    """Without scores the ranks stand in; the passages are the same."""
    async with running(search_app(SqliteEngine(index))) as url:
        async with (
            RetrievalClient(f"{url}/retrieve", scores=False) as plain,
            RetrievalClient(url) as scored,
        ):
            ours = (await plain.search(["salt trader"], 4))[0]
            theirs = (await scored.search(["salt trader"], 4))[0]
        assert [h.passage for h in ours] == [h.passage for h in theirs]
        assert [h.score for h in ours] == [1.0, 1 / 2, 1 / 3, 1 / 4]


async def test_passages_that_no_search_has_shown_can_be_opened(index: Path) -> None:
    """The client asks /access for ids that it has not seen."""
    async with running(search_app(SqliteEngine(index))) as url:
        async with RetrievalClient(url) as client:
            passage, nothing = await client.get(["w133", "w999"])
    assert passage is not None
    assert passage.title == "The Jorollen Chronicle"
    assert nothing is None


async def test_a_server_that_stumbles_is_asked_again() -> None:
    """Two 503 and then an answer: the caller sees the answer only."""
    tries = 0

    async def answer(request: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            return Response(status_code=503)
        return {"result": [[{"document": {"id": "1", "contents": '"T"\nx'}, "score": 2.0}]]}

    async with running(answering("/retrieve", answer)) as url:
        async with RetrievalClient(url, patience=QUICK) as client:
            hits = (await client.search(["q"], 1))[0]
    assert (tries, hits[0].passage.text) == (3, "x")


@pytest.mark.parametrize(
    ("answer", "message", "tries"),
    [
        (Response("overloaded", 503), "answered 503: overloaded", 3),
        (Response("no such index", 404), "answered 404: no such index", 1),
        (PlainTextResponse("<html>"), "answered no JSON", 1),
        ({"result": []}, "expected `result` with 1 lists", 1),
        ({"result": [[{"document": {"id": "1"}, "score": 1}]]}, "a hit that is none", 1),
        ({"result": [["text"]]}, "a hit that is none", 1),
    ],
)
async def test_what_a_broken_server_does_to_us(answer: Any, message: str, tries: int) -> None:
    """It raises SearchUnavailable with the server's message; only temporary errors are retried."""
    seen = 0

    async def reply(request: Any) -> Any:
        nonlocal seen
        seen += 1
        return answer

    async with running(answering("/retrieve", reply)) as url:
        async with RetrievalClient(url, patience=QUICK) as client:
            with pytest.raises(SearchUnavailable, match=message):
                await client.search(["q"], 1)
    assert seen == tries


async def test_a_server_that_hangs_is_left() -> None:
    """A request without an answer ends at its deadline."""

    async def never(request: Any) -> Any:
        await request.receive()
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        return {}

    patience = Patience(seconds=0.2, tries=2, first_wait=0.001, longest_wait=0.001)
    async with running(answering("/retrieve", never)) as url:
        async with RetrievalClient(url, patience=patience) as client:
            with pytest.raises(SearchUnavailable, match=r"no answer within 0\.2 s"):
                await asyncio.wait_for(client.search(["q"], 1), 60)


async def test_no_server() -> None:
    """A refused connection is named with its address."""
    async with RetrievalClient("http://127.0.0.1:9", patience=QUICK) as client:
        with pytest.raises(SearchUnavailable, match=r"127\.0\.0\.1:9/retrieve can't be reached"):
            await client.search(["q"], 1)


@contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `trajgym search serve` as a process; kill it in the end."""
    command = [sys.executable, "-m", "trajgym.cli", "search", "serve", "builtin"]
    with subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            yield server
        finally:
            server.kill()


async def test_sessions_outlive_a_restart_of_their_server(forward: Forward) -> None:
    """When a server is restarted, sessions wait; this does not count towards the agent's time."""
    port = free_port()
    engine = {"kind": "retrieval", "url": f"http://127.0.0.1:{port}"}
    spec = EnvSpec(id="search", config={"engine": engine})
    seconds = 20.0
    queries = ["Jorollen Chronicle", "Jorollen Chronicle", "salt"]

    async def search(query: str) -> Session:
        async with Session(spec, TASK, budgets=Budgets(seconds=seconds)) as session:
            opened.append(session)
            await session.step(call("search", query=query))
            assert "Doc 1 (Title:" in str(session.turns[-1].observation[0]["content"])
            await session.step(call("answer", answer="Orlundrath"))
        return session

    opened: list[Session] = []
    for _ in range(2):  # the first round waits for the first start, the second for the restart
        opened.clear()
        searching = asyncio.gather(*map(search, queries))
        async with asyncio.timeout(60):
            while len(opened) < 3 or not all(session.clock.held for session in opened):
                await asyncio.sleep(0.01)
        forward(seconds + 10)  # less than the patience with a server that can't be reached
        with serving(port):
            sessions = await searching
        assert [str(session.status) for session in sessions] == ["completed"] * 3
        assert max(session.clock.used for session in sessions) < seconds


async def test_a_clock_is_held_for_every_session_that_waits() -> None:
    """Work that several sessions wait for holds all their clocks, also of one that joins late."""
    shared, begun, go = SharedClock(), asyncio.Event(), asyncio.Event()
    clocks = [AgentClock() for _ in range(2)]

    async def work() -> None:
        with shared.serving(), off_the_clock() as held:
            assert held
            begun.set()
            await go.wait()

    async def wait(clock: AgentClock, ready: asyncio.Event) -> None:
        async with clock.running(60.0):
            with shared.waiting():
                ready.set()
                await working

    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in clocks]
        working = group.create_task(go.wait())
        group.create_task(wait(clocks[0], ready[0]))
        await ready[0].wait()
        group.create_task(work())
        await begun.wait()
        assert clocks[0].held
        group.create_task(wait(clocks[1], ready[1]))
        await ready[1].wait()
        assert clocks[1].held
        go.set()
    assert not any(clock.held for clock in [*clocks, shared])


async def test_an_engine_that_fails_is_a_503(tmp_path: Path, index: Path) -> None:
    """The server passes on that its engine has no answer."""
    broken = SqliteEngine(index, seconds=30.0)
    broken._store.path = tmp_path / "gone.sqlite"
    async with running(search_app(broken)) as url:
        with pytest.raises(urllib.error.HTTPError) as caught:
            await asyncio.to_thread(post, f"{url}/retrieve", {"queries": ["salt"]})
    assert caught.value.code == 503
    assert "unable to open" in json.loads(caught.value.read())["error"]
    caught.value.close()
