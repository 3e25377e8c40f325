"""The live web: search services, pages, and sections, over real HTTP to local stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from tests.search.serving import running
from trajgym.envs import EnvSpec, Session
from trajgym.envs.search import (
    BraveEngine,
    PageFetcher,
    PageRefused,
    Patience,
    SearchUnavailable,
    SearxngEngine,
    SerperEngine,
    WebSearch,
    check_engine,
    open_engine,
)
from trajgym.envs.search._pages import sections_of
from trajgym.rollout import call
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

QUICK = Patience(seconds=60.0, tries=2, first_wait=0.001, longest_wait=0.001)
FETCHER = PageFetcher(patience=QUICK, private=True)
WORDS = "The pans along the shore are filled with sea water every morning by the salt makers. "
PAGE = f"""<html><head><title>Tide salt</title></head><body><nav><a href="/">Home</a></nav><article>
<h1>Tide salt</h1><p>{WORDS * 3}</p><h2>History</h2><p>The first pans were dug by Orliomar Berrick
in the year 830. {WORDS * 3}</p><h2>Trade</h2><p>Most of it is sold in the west. {WORDS * 3}</p>
</article><footer>Imprint</footer></body></html>"""


def found(request: Request, query: str, most: int) -> list[tuple[str, str, str]]:
    """Title, URL and snippet of the results of a query."""
    base = str(request.base_url).rstrip("/")
    pages = [("Tide salt", f"{base}/salt"), ("Gone", f"{base}/gone"), ("Tide salt", f"{base}/salt")]
    return [(title, url, f"about {query}") for title, url in pages][:most]


async def serper(request: Request) -> Response:
    if request.headers.get("x-api-key") != "key":
        return JSONResponse({"message": "Unauthorized."}, 403)
    body = await request.json()
    if body["q"] == "nothing":
        return JSONResponse({"searchParameters": body})
    rows = [
        {"title": title, "link": url, "snippet": text, "position": place}
        for place, (title, url, text) in enumerate(found(request, body["q"], body["num"]), 1)
    ]
    return JSONResponse({"searchParameters": body, "organic": rows, "relatedSearches": []})


async def brave(request: Request) -> Response:
    if request.headers.get("x-subscription-token") != "key":
        return JSONResponse({"type": "ErrorResponse"}, 422)
    asked = request.query_params
    if asked["q"] == "nothing":
        return JSONResponse({"type": "search", "query": {"original": asked["q"]}})
    rows = [
        {"title": title, "url": url, "description": text, "extra_snippets": ["and more"]}
        for title, url, text in found(request, asked["q"], int(asked["count"]))
    ]
    return JSONResponse({"type": "search", "web": {"type": "search", "results": rows}})


async def searxng(request: Request) -> Response:
    asked = request.query_params
    assert asked["format"] == "json"
    rows = [
        {"title": title, "url": url, "content": text, "engine": "x"}
        for title, url, text in found(request, asked["q"], 10)
    ]
    return JSONResponse({"results": [] if asked["q"] == "nothing" else rows})


async def page(request: Request) -> Response:
    match request.path_params["name"]:
        case "salt":
            return HTMLResponse(PAGE)
        case "plain":
            return PlainTextResponse("only text\n")
        case "moved":
            return RedirectResponse("/salt")
        case "loop":
            return RedirectResponse("/loop")
        case "file":
            return RedirectResponse("file:///etc/passwd", 302)
        case "picture":
            return Response(b"GIF89a", media_type="image/gif")
        case "empty":
            return HTMLResponse("<html><body></body></html>")
        case "large":
            return PlainTextResponse("x" * 3_000_000)
        case "down":
            return Response(status_code=503)
    return Response(status_code=404)


def web() -> Starlette:
    return Starlette(
        routes=[
            Route("/search", serper, methods=["POST"]),
            Route("/search", searxng, methods=["GET"]),
            Route("/res/v1/web/search", brave),
            Route("/{name}", page),
        ]
    )


def engine_of(kind: str, url: str, key: str = "key") -> WebSearch:
    if kind == "serper":
        return SerperEngine(key, base_url=url, patience=QUICK, fetcher=FETCHER)
    if kind == "brave":
        return BraveEngine(key, base_url=url, patience=QUICK, fetcher=FETCHER)
    return SearxngEngine(url, patience=QUICK, fetcher=FETCHER)


@pytest.mark.parametrize("kind", ["searxng", "serper", "brave"])
async def test_search_services(kind: str) -> None:
    """Every service finds the same pages, each once; pages open in full, or as their snippet."""
    async with running(web()) as url, engine_of(kind, url) as engine:
        await check_engine(engine, ["tides", "salt"], opens=False)
        hits = (await engine.search(["tides"], 5))[0]
        assert [(h.passage.title, h.passage.url) for h in hits] == [
            ("Tide salt", f"{url}/salt"),
            ("Gone", f"{url}/gone"),
        ]
        assert hits[0].passage.text.startswith("about tides")
        assert await engine.search(["nothing"], 5) == [[]]
        full, gone, never = await engine.get([f"{url}/salt", f"{url}/gone", f"{url}/never"])
        assert full is not None
        assert "## History" in full.text
        assert "Imprint" not in full.text
        assert gone == hits[1].passage
        assert never is None


@pytest.mark.parametrize("kind", ["serper", "brave"])
async def test_a_wrong_key_is_named_and_not_tried_again(kind: str) -> None:
    """A service that refuses the key ends as SearchUnavailable with its answer."""
    async with running(web()) as url, engine_of(kind, url, "wrong") as engine:
        with pytest.raises(SearchUnavailable, match="answered 4"):
            await engine.search(["tides"], 2)


@pytest.mark.parametrize("kind", ["serper", "brave"])
async def test_services_by_settings(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key comes from the environment; what was found and read can be replayed offline."""
    record = tmp_path / "web.jsonl"
    variable = f"{kind.upper()}_API_KEY"
    monkeypatch.delenv(variable, raising=False)
    async with running(web()) as url:
        settings = {"kind": kind, "url": url, "fetch": True, "private_pages": True,
                    "record": str(record)}  # fmt: skip
        with pytest.raises(InvalidInput, match=variable):
            open_engine(settings, web=True)
        monkeypatch.setenv(variable, "key")
        async with open_engine(settings, web=True) as engine:
            hits = await engine.search(["tides"], 2)
            pages = await engine.get([f"{url}/salt"])
    async with open_engine({"kind": "replay", "path": str(record)}) as replay:
        assert await replay.search(["tides"], 2) == hits
        assert await replay.get([f"{url}/salt"]) == pages


async def test_an_agent_reads_a_page_section_by_section() -> None:
    """A long page lists its sections; one of them opens by number or heading."""
    task = Task(id="t", data={"question": "Who dug the first pans?", "answers": ["Berrick"]})
    async with running(web()) as url:
        engine = {"kind": "searxng", "url": url, "fetch": True, "private_pages": True}
        spec = EnvSpec(
            id="search", config={"engine": engine, "web": True, "observation_tokens": 60}
        )
        async with Session(spec, task) as session:

            async def read(**arguments: Any) -> str:
                await session.step(call("open", doc=f"{url}/salt", **arguments))
                return str(session.turns[-1].observation[0]["content"])

            await session.step(call("search", query="tides"))
            first = await read()
            assert "Sections: 1 Tide salt; 2 History; 3 Trade" in first
            assert "[window 1 of " in first
            by_number, by_name = await read(section="2"), await read(section="history")
            assert by_number == by_name
            assert "dug by Orliomar Berrick" in by_name
            assert by_name.startswith("Tide salt - History\n")
            assert "there is no section 'Prices'; Sections: 1" in await read(section="Prices")
            await session.step(call("open", doc=f"{url}/never"))
            last = str(session.turns[-1].observation[0]["content"])
            assert "that can be opened" in last
            assert not session.done


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("never", "answered 404"),
        ("loop", "more than 5 redirects"),
        ("file", "only http and https"),
        ("picture", "content of type image/gif"),
        ("empty", "no text could be extracted"),
    ],
)
async def test_pages_that_are_refused(name: str, message: str) -> None:
    """What can't be read is refused with the reason, without another try."""
    async with running(web()) as url:
        with pytest.raises(PageRefused, match=message):
            await FETCHER.fetch(f"{url}/{name}")


async def test_pages_that_are_read() -> None:
    """Redirects are followed, plain text is taken as it is, large pages are cut."""
    async with running(web()) as url:
        assert "Tide salt" in (await FETCHER.fetch(f"{url}/moved")).title
        assert (await FETCHER.fetch(f"{url}/plain")).text == "only text\n"
        small = PageFetcher(patience=QUICK, private=True, most_bytes=1000)
        assert len((await small.fetch(f"{url}/large")).text) == 1000
        with pytest.raises(SearchUnavailable, match="answered 503"):
            await FETCHER.fetch(f"{url}/down")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/x", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/latest",
     "http://localhost/", "http://2130706433/", "ftp://example.org/", "file:///etc/passwd"],
)  # fmt: skip
async def test_private_addresses_are_not_fetched(url: str) -> None:
    """An agent can't read the machine's own services or its network through the fetcher."""
    with pytest.raises(PageRefused):
        await PageFetcher(patience=QUICK).fetch(url)


def test_sections_hold_the_whole_text() -> None:
    """Every heading starts a section, and nothing is lost between them."""
    text = "before\n# One\na\n## Two ##\nb # not a heading\n# Three"
    assert [tuple(s) for s in sections_of(text)] == [
        ("", "before"), ("One", "a"), ("Two", "b # not a heading"), ("Three", "")]  # fmt: skip
    assert [tuple(s) for s in sections_of("")] == [("", "")]
