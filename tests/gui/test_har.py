"""Recorded traffic: what a recording answers, and real sites replayed after they are gone."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from tests.gui.solver import read_tree
from tests.worlds import call
from trajgym.envs import EnvSpec, Session
from trajgym.envs.gui import (
    BadAction,
    Browser,
    BrowserRecord,
    PictureForm,
    browser_spec,
)
from trajgym.envs.gui.actions import Click, Element, GoBack, GoTo
from trajgym.envs.gui.browser.inside._archive import Archive, BadArchive
from trajgym.envs.sandbox import DockerProvider, close_shared_providers
from trajgym.trajectory import InvalidInput, Message, Task, text_of

loop = pytest.mark.asyncio(loop_scope="module")
SITE = "http://shop.example"
PATIENT = {"settle_seconds": 30.0}
"""A site of this machine answers at some time, however busy the machine is."""


# What a recording answers ------------------------------------------------------------------------


def entry(method: str, path: str, text: str = "", **more: Any) -> dict[str, Any]:
    """Return an entry of a HAR; ``sent`` is the body of its request."""
    asked: dict[str, Any] = {"method": method, "url": more.get("url") or f"{SITE}{path}"}
    asked["headers"] = [{"name": k, "value": v} for k, v in more.get("asked", {}).items()]
    if "sent" in more:
        asked["postData"] = {"mimeType": "text/plain", "text": more["sent"]}
    headers = [{"name": k, "value": v} for k, v in more.get("headers", ())]
    content = more.get("content", {"mimeType": "text/html", "text": text})
    answered = {"status": more.get("status", 200), "headers": headers, "content": content}
    return {"request": asked, "response": answered}


def archive(folder: Path, *entries: dict[str, Any], ignore: tuple[str, ...] = ()) -> Archive:
    path = folder / "site.har"
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}))
    return Archive(path, ignore)


def body(found: Archive, method: str, path: str, **more: Any) -> str | None:
    answer = found.find(method, f"{SITE}{path}", **more)
    return None if answer is None else answer.body.decode()


def test_an_address_is_answered_as_its_state_was_when_it_was_recorded(tmp_path: Path) -> None:
    """Responses after a change are given after it only, and as often as the page asks."""
    found = archive(
        tmp_path,
        entry("GET", "/cart", "empty"),
        entry("POST", "/add", "added", sent="item=mug"),
        entry("GET", "/cart", "1 mug"),
        entry("POST", "/remove", "removed", sent="item=mug"),
        entry("GET", "/cart", "empty again"),
    )
    assert [body(found, "GET", "/cart") for _ in range(3)] == ["empty"] * 3
    assert body(found, "POST", "/add", body=b"item=mug") == "added"
    assert [body(found, "GET", "/cart") for _ in range(2)] == ["1 mug"] * 2
    assert body(found, "POST", "/add", body=b"item=pan") is None
    assert body(found, "POST", "/add") is None
    assert body(found, "POST", "/remove", body=b"item=mug") == "removed"
    assert body(found, "GET", "/cart") == "empty again"
    assert body(found, "POST", "/add", body=b"item=mug") == "added"
    assert body(found, "GET", "/cart") == "1 mug"


def test_responses_between_two_changes_are_given_in_their_order(tmp_path: Path) -> None:
    """A page that polls until a job is done sees it done; the last response is repeated."""
    states = ("queued", "running", "done")
    found = archive(tmp_path, *(entry("GET", "/job", state) for state in states))
    assert [body(found, "GET", "/job") for _ in range(5)] == [*states, "done", "done"]


def test_requests_of_other_origins_change_nothing(tmp_path: Path) -> None:
    """A beacon to another host does not move a site to a later state."""
    found = archive(
        tmp_path,
        entry("GET", "/", "before"),
        entry("POST", "", "", url="http://stats.example/beacon", sent="seen"),
        entry("GET", "/", "after"),
    )
    assert body(found, "GET", "/") == "before"
    assert found.find("POST", "http://stats.example/beacon", body=b"seen") is not None
    assert body(found, "GET", "/") == "after"  # the second response of the same state


def test_redirects_are_followed_with_their_cookies(tmp_path: Path) -> None:
    """A redirect is reported for a navigation and followed for other requests; loops end."""
    found = archive(
        tmp_path,
        entry("POST", "/login", status=303, headers=[("Location", "/home"), ("Set-Cookie", "a=1")]),
        entry("GET", "/home", "hello", headers=[("Set-Cookie", "b=2"), ("Set-Cookie", "c=3")]),
        entry("GET", "/loop", status=302, headers=[("Location", "/loop")]),
        entry("GET", "/gone", status=302, headers=[("Location", "/nowhere")]),
    )
    step = found.find("POST", f"{SITE}/login")
    assert step is not None
    assert (step.location, step.headers["set-cookie"]) == (f"{SITE}/home", "a=1")
    end = found.find("POST", f"{SITE}/login", follow=True)
    assert end is not None
    assert (end.body, end.headers["set-cookie"]) == (b"hello", "a=1\nb=2\nc=3")
    assert found.find("GET", f"{SITE}/loop", follow=True) is None
    assert found.find("GET", f"{SITE}/gone", follow=True) is None


def test_parameters_that_may_differ(tmp_path: Path) -> None:
    """Named query parameters are ignored, the others count; ``*`` ignores all of them."""
    page = entry("GET", "/list?page=2&_=171", "second")
    strict, named = archive(tmp_path, page), archive(tmp_path, page, ignore=("_",))
    every = archive(tmp_path, page, ignore=("*",))
    assert body(strict, "GET", "/list?page=2&_=999") is None
    assert body(named, "GET", "/list?_=999&page=2#top") == "second"
    assert body(named, "GET", "/list?page=3&_=171") is None
    assert body(every, "GET", "/list?page=3") == "second"


def test_the_export_of_a_browser_is_understood(tmp_path: Path) -> None:
    """Pseudo headers, encodings, cached and missing bodies, as Chrome's developer tools export."""
    picture = base64.b64encode(b"\x89PNG").decode()
    headers = [(":status", "200"), ("Content-Encoding", "br"), ("Content-Length", "9")]
    found = archive(
        tmp_path,
        entry("GET", "/a.png", content={"encoding": "base64", "text": picture}, headers=headers),
        entry("GET", "/cached", status=304, content={"size": 9, "text": "kept"}),
        entry("GET", "/cached", status=304, content={"size": 0}),
        entry("GET", "/dropped", content={"size": 1200, "mimeType": "text/html"}),
        entry("GET", "", url="data:text/plain,x"),
        entry("GET", "/failed", status=0),
        {"request": {}},
    )
    shown = found.find("GET", f"{SITE}/a.png")
    assert shown is not None
    assert (shown.body, shown.headers) == (b"\x89PNG", {})
    cached = found.find("GET", f"{SITE}/cached")
    assert cached is not None
    assert (cached.status, cached.body) == (200, b"kept")
    failed = found.find("GET", f"{SITE}/failed")
    assert failed is not None
    assert failed.status == 0
    assert body(found, "GET", "/dropped") is None
    assert f"{SITE}/dropped" in found.lacking


def test_an_upload_may_have_another_boundary(tmp_path: Path) -> None:
    """Multipart bodies are compared without their boundary, which is random."""
    kind = "multipart/form-data; boundary="
    form = '--{0}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--{0}--\r\n'
    asked = {"Content-Type": f"{kind}XX1"}
    found = archive(tmp_path, entry("POST", "/up", "ok", sent=form.format("XX1"), asked=asked))
    sent = form.format("YY2").encode()
    headers = {"content-type": f"{kind}YY2"}
    assert body(found, "POST", "/up", body=sent, headers=headers) == "ok"
    other = sent.replace(b"\r\n1\r\n", b"\r\n2\r\n")
    assert body(found, "POST", "/up", body=other, headers=headers) is None


def test_representations_of_one_address(tmp_path: Path) -> None:
    """Headers with which pages ask for data in place of a document are respected."""
    found = archive(
        tmp_path,
        entry("GET", "/p", "page", asked={"Accept": "text/html"}),
        entry("GET", "/p", "{}", asked={"Accept": "application/json"}),
    )
    assert body(found, "GET", "/p", headers={"accept": "application/json"}) == "{}"
    assert body(found, "GET", "/p", headers={"accept": "text/html"}) == "page"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"log": 3}', '{"log": {"entries": {}}}', '{"log": {"entries": []}}']
)
def test_what_is_no_recording_is_refused(text: str, tmp_path: Path) -> None:
    """A file that is no HAR, or has nothing to replay, is refused when tasks are loaded."""
    path = tmp_path / "x.har"
    path.write_text(text)
    with pytest.raises(BadArchive):
        Archive(path)
    data = {"instruction": "Go.", "answer": "x", "har": str(path), "start_url": f"{SITE}/"}
    with pytest.raises(InvalidInput, match="har: "):
        BrowserRecord.of(Task(id="x", data=data))


def test_a_task_with_a_recording_is_checked_when_it_is_loaded(tmp_path: Path) -> None:
    """Its start page must be in the recording, and there can't be a network beside it."""
    archive(tmp_path, entry("GET", "/", "hello"))
    path = str(tmp_path / "site.har")
    good = {"instruction": "Go.", "answer": "x", "har": path, "start_url": f"{SITE}/"}
    BrowserRecord.of(Task(id="x", data=good))
    for more, said in (
        ({"start_url": f"{SITE}/other"}, "no response for start_url"),
        ({"network": True}, "excludes network"),
        ({"har": str(tmp_path / "none.har")}, "No such file"),
        ({"har": None, "har_ignore": ["_"]}, "without har"),
    ):
        with pytest.raises(InvalidInput, match=said):
            BrowserRecord.of(Task(id="x", data={**good, **more}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3))
def test_malformed_entries_are_skipped(entries: list[Any]) -> None:
    """Entries that are no objects, or lack a request, are left out."""
    with tempfile.TemporaryDirectory() as folder:
        kept = entry("GET", "/", "kept")
        assert body(archive(Path(folder), *entries, kept), "GET", "/") == "kept"


PARTS = st.sampled_from(
    [
        *(("request", name) for name in ("method", "url", "headers", "postData")),
        *(("response", name) for name in ("status", "headers", "content")),
        *(("response", "content", name) for name in ("text", "size", "encoding", "mimeType")),
    ]
)


@given(st.lists(st.tuples(PARTS, JSON), min_size=1, max_size=3))
def test_malformed_parts_of_entries_break_nothing(
    changes: list[tuple[tuple[str, ...], Any]],
) -> None:
    """Entries with wrong values are left out or answered; others are not affected."""
    broken = entry("GET", "/broken", "text", headers=[("Content-Type", "text/html")])
    for path, value in changes:
        at = broken
        for name in path[:-1]:
            at = at[name] if isinstance(at.get(name), dict) else {}
        at[path[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        found = archive(Path(folder), broken, entry("GET", "/", "kept"))
        assert body(found, "GET", "/") == "kept"
        found.find("GET", f"{SITE}/broken", follow=True)


# Real sites ---------------------------------------------------------------------------------------

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR4nGP8z4APMOGVHbHSAEEsARMp1xGlAAAAAElFTkSuQmCC"
)


class Shop(BaseHTTPRequestHandler):
    """A small shop with a login, a basket in memory, pictures, scripts and requests for data."""

    protocol_version = "HTTP/1.1"
    basket: ClassVar[list[str]] = []
    asked: ClassVar[list[str]] = []

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        user = "ann" if "user=ann" in self.headers.get("Cookie", "") else "nobody"
        path = self.path.partition("?")[0]
        if path == "/style.css":
            self.send("text/css", b"h1 { color: rgb(1, 2, 3); }")
        elif path == "/dot.png":
            self.send("image/png", PIXEL)
        elif path == "/api/basket":
            self.send("application/json", json.dumps(self.basket).encode())
        elif path == "/old":
            self.send("text/html", b"", 301, [("Location", "/home")])
        elif path == "/home":
            self.page(f"Hello {user}")
        elif path == "/":
            self.page("Shop")
        else:
            self.send("text/html", b"no such page", 404)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        type(self).asked.append(f"{self.path} {sent}")
        if self.path == "/login":
            self.send("text/html", b"", 303, [("Set-Cookie", "user=ann"), ("Location", "/home")])
        else:
            type(self).basket.append(sent.partition("=")[2])
            self.send("text/html", b"", 303, [("Location", "/home")])

    def page(self, title: str) -> None:
        self.send(
            "text/html; charset=utf-8",
            f"""<title>{title}</title><link rel=stylesheet href=/style.css><h1>{title}</h1>
<img src=/dot.png alt=Dot><p id=basket>loading</p>
<form method=post action=/login><input name=name aria-label=Name><button>Log in</button></form>
<form method=post action=/add><input type=hidden name=item value=mug><button>Add</button></form>
<a href=/old>Old home</a> <a href=/help>Help</a>
<script>fetch('/api/basket?_=' + Date.now()).then(r => r.json()).then(
  found => document.getElementById('basket').textContent = `Basket: ${{found.join(', ')}}.`)
</script>""".encode(),
        )

    def send(
        self, kind: str, data: bytes, status: int = 200, more: list[tuple[str, str]] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(data)))):
            self.send_header(name, value)
        for name, value in more or ():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def running(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(browser_image: None) -> AsyncIterator[None]:
    yield
    await close_shared_providers()


def does(name: str, **arguments: Any) -> dict[str, Any]:
    return call((name, json.dumps(arguments)))


def find(message: Message, role: str, name: str) -> str:
    return read_tree("", text_of(message)).one(role, name).id


def page_of(message: Message) -> str:
    return text_of(message).partition("[image")[0]


async def shop_along(session: Session) -> list[str]:
    """Log in, add a mug, follow a redirect; return the texts of the observations."""
    texts = [page_of(session.messages[0])]
    message = session.messages[0]
    steps: list[tuple[str, str, str, str]] = [
        ("fill", "textbox", "Name", "Ann"),
        ("click", "button", "Log in", ""),
        ("click", "button", "Add", ""),
        ("click", "link", "Old home", ""),
    ]
    for name, role, label, text in steps:
        more = {"text": text} if text else {}
        result = await session.step(does(name, element=find(message, role, label), **more))
        message = result.observation[0]
        texts.append(page_of(message))
    return texts


@pytest.mark.docker
@loop
async def test_a_site_is_replayed_after_it_is_gone(engine: None, tmp_path: Path) -> None:
    """An agent's traffic is recorded; the same walk without the site has the same pages."""
    Shop.basket, Shop.asked = [], []
    data: dict[str, Any] = {"instruction": "Buy.", "answer": "mug", "start_url": f"{SITE}/"}
    hars = tmp_path / "hars"
    with running(Shop) as port:
        live = Task(id="buy/1", data={**data, "allow": [f"shop.example:80=127.0.0.1:{port}"]})
        env = EnvSpec(id="browser", config={"picture": "none", "record_har": str(hars), **PATIENT})
        async with Session(env, live) as session:
            recorded = await shop_along(session)
    assert "Hello ann" in recorded[-1]
    assert "Basket: mug." in recorded[-1]
    (har,) = hars.iterdir()
    assert har.name == "buy_1-0.har"
    before = len(Shop.asked)

    replayed = Task(id="buy", data={**data, "har": str(har), "har_ignore": ["_"]})
    env = EnvSpec(id="browser", config={"picture": "jpeg"})
    async with Session(env, replayed, snapshot_every=1) as session:
        assert await shop_along(session) == recorded
        opened = session._instance.env.browser  # type: ignore[union-attr]
        look = await opened.look(PictureForm())
        assert (look.url, look.title) == (f"{SITE}/home", "Hello ann")
        colour = "getComputedStyle(document.querySelector('h1')).color"
        assert await opened.evaluate(f"() => {colour}") == "rgb(1, 2, 3)"
        assert await opened.evaluate("() => document.images[0].naturalWidth") == 10
        assert "unmatched_requests" not in session.turns[-1].signals

        # What was not recorded fails, is reported, and does not end anything.
        await session.step(
            does("click", element=find(session.turns[-1].observation[0], "link", "Help"))
        )
        assert session.turns[-1].signals["unmatched_requests"] == 1
        shown = text_of(session.turns[-1].observation[0])
        assert "http://shop.example/help could not be loaded" in shown
        result = await session.step(does("back"))
        assert "Hello ann" in text_of(result.observation[0])

        # A fork goes on from the state of the recording at that turn, in a browser of its own.
        async with await session.fork(session.turns[2].index) as rival:
            assert rival.turns[-1].index == session.turns[2].index
            result = await rival.step(does("goto", url=f"{SITE}/home"))
            assert rival.turns[-1].signals["fork"]["by"] == "storage"
            assert "Basket: mug." in text_of(result.observation[0])
        await session.step(does("answer", text="mug"))
    assert session.outcome is not None
    assert session.outcome.passed
    missed = session.outcome.details["unmatched_requests"]
    assert missed == {"count": 1, "first": ["GET http://shop.example/help"]}
    assert len(Shop.asked) == before


@pytest.mark.docker
@loop
async def test_a_recording_of_another_browser(engine: None, tmp_path: Path) -> None:
    """HTTPS, redirects between hosts, a lost picture, a web socket and a script's requests."""
    page = """<title>News</title><h1>News</h1><img src=/lost.png><a href=/go>Go</a>
<p id=a>waiting</p><script>
fetch('https://api.example/data', {method: 'POST', body: 'q=1'}).then(r => r.text()).then(
  t => document.getElementById('a').textContent = t);
fetch('/lost.json').catch(e => document.title = 'Refused');
new WebSocket('wss://news.example/live').onclose = e => console.log('closed ' + e.code);
</script>"""
    allowed = [("Access-Control-Allow-Origin", "*")]
    archive(
        tmp_path,
        entry("GET", "", page, url="https://news.example/", headers=[(":status", "200")]),
        entry("POST", "", "42", url="https://api.example/data", sent="q=1", headers=allowed),
        entry("GET", "", status=302, url="https://news.example/go",
              headers=[("Location", "https://id.example/in"), ("Set-Cookie", "left=1")]),
        entry("GET", "", status=307, url="https://id.example/in",
              headers=[("Location", "https://news.example/end"), ("Set-Cookie", "in=1")]),
        entry("GET", "", "<title>End</title><p>The end", url="https://news.example/end"),
    )  # fmt: skip
    async with DockerProvider() as provider:
        async with (
            await provider.start(browser_spec()) as box,
            Browser(box, har=tmp_path / "site.har", sites=["mail"]) as browser,
        ):
            look = await browser.act([GoTo("https://news.example/")], PictureForm())
            assert look.errors == ("",)
            assert '"42"' in look.tree
            assert look.title == "Refused"
            assert sorted(look.unmatched) == [
                "GET https://news.example/lost.json",
                "GET https://news.example/lost.png",
                "WEBSOCKET wss://news.example/live",
            ]
            assert look.unmatched_count == 3
            assert ("console", "log: closed 1001") in look.events
            link = read_tree("", look.tree).one("link", "Go").id
            look = await browser.act([Click(Element(link))])
            assert (look.url, look.unmatched) == ("https://news.example/end", ())
            assert "left=1" in await browser.evaluate("() => document.cookie")
            look = await browser.act([GoBack()])
            assert look.url == "https://news.example/"
            # Sites of the sandbox can be used beside a recording, and nothing else.
            look = await browser.act([GoTo("http://mail.test/")])
            assert "Inbox" in look.tree
            look = await browser.act([GoTo("http://127.0.0.1:1/")])
            assert look.unmatched == ("GET http://127.0.0.1:1/",)
            with pytest.raises(BadAction, match="not recorded"):
                await browser.save_har(tmp_path / "none.har")


@pytest.mark.docker
@loop
async def test_on_a_slow_machine_recorded_answers_are_waited_for(
    engine: None, tmp_path: Path
) -> None:
    """A recording answers for certain: a processor with other work delays a step, no more."""
    page = """<title>Chain</title><p id=a>waiting</p><script>
let text = '';
onload = () => {
  for (let i = 0; i < 60; i++) fetch(`/${i}.png`);
  fetch('/1').then(r => r.text()).then(t => { text += t; return fetch('/2'); })
    .then(r => r.text()).then(t => { text += t; return fetch('/3'); })
    .then(r => r.text()).then(t => { document.getElementById('a').textContent = text + t; });
};
</script>"""
    archive(
        tmp_path,
        entry("GET", "/", page),
        *(entry("GET", f"/{i}.png", "x" * 100_000) for i in range(60)),
        *(entry("GET", f"/{i}", f"part {i}. ") for i in (1, 2, 3)),
    )
    async with DockerProvider() as provider:
        async with (
            await provider.start(browser_spec()) as box,
            Browser(
                box, har=tmp_path / "site.har", load_seconds=600, action_seconds=600
            ) as browser,
        ):
            await browser.look()
            change = ["docker", "update", "--cpus", "0.2", box.container]
            await (await asyncio.create_subprocess_exec(*change)).wait()
            look = await browser.act([GoTo(f"{SITE}/")])
            assert "part 1. part 2. part 3." in look.tree


@pytest.mark.docker
@loop
async def test_traffic_of_own_sites_is_recorded(engine: None, tmp_path: Path) -> None:
    """A recording is a HAR with bodies, and ends when it is saved."""
    async with DockerProvider() as provider:
        async with (
            await provider.start(browser_spec()) as box,
            Browser(box, sites=["shop"], record_har=True) as browser,
        ):
            await browser.act([GoTo("http://shop.test/product/kettle")])
            await browser.save_har(tmp_path / "kept" / "shop.har")
            await browser.act([GoTo("http://shop.test/basket")])
            with pytest.raises(BadAction, match="not recorded"):
                await browser.save_har(tmp_path / "again.har")
    kept = Archive(tmp_path / "kept" / "shop.har")
    assert kept.has("http://shop.test/product/kettle")
    assert not kept.has("http://shop.test/basket")
