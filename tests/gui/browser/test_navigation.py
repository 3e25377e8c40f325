"""Addresses: which can be reached, and how long a page is waited for."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gui.browser.pages import PAGES, at, event, item, kinds
from tests.gui.solver import read_tree
from trajgym.envs.gui import Browser, PictureForm
from trajgym.envs.gui.actions import Click, CloseTab, GoBack, GoTo, TypeText
from trajgym.envs.sandbox import Sandbox

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


async def test_history(browser: Browser) -> None:
    """Going back returns to the previous page; without one, the agent reads an error."""
    await at(browser, "long")
    look = await browser.act([GoBack()])
    assert look.url == "http://pages.test/"


async def test_pages_that_can_not_be_reached(browser: Browser) -> None:
    """A failed navigation is an error that the agent reads; the browser can be used afterwards."""
    for url in ("http://192.0.2.1/", "http://no-such-host.example/", "http://127.0.0.1:4/"):
        look = await browser.act([GoTo(url)], PictureForm())
        assert "net::ERR" in look.errors[0]
        assert "navigation" in kinds(look)
    look = await at(browser, "index.html")
    assert look.errors == ("",)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "chrome://version", "data:text/html,x"]
)
async def test_only_the_web_can_be_opened(browser: Browser, url: str) -> None:
    """No address runs a script or reads a file."""
    look = await browser.act([GoTo(url)])
    assert look.errors != ("",)
    assert look.url == "http://pages.test/"


async def test_nothing_outside_can_be_reached(browser: Browser) -> None:
    """A page can't reach the host, its gateway, the internet or a name."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        hosts = ["172.17.0.1", "10.0.2.2", "host.docker.internal", "192.168.0.1", "1.1.1.1"]
        urls = [f"http://{host}:{port}/" for host in hosts] + ["https://example.com/"]
        tries = f"""() => Promise.all({json.dumps(urls)}.map(url =>
            Promise.race([fetch(url, {{mode: 'no-cors'}}).then(() => 'reached', e => 'failed'),
                          new Promise(done => setTimeout(() => done('waited'), 20000))])))"""
        assert set(await browser.evaluate(tries)) == {"failed"}
        socket = f"""() => new Promise(done => {{ const s = new WebSocket('ws://172.17.0.1:{port}');
            s.onopen = () => done('reached'); s.onerror = () => done('failed'); }})"""
        assert await browser.evaluate(socket) == "failed"
        assert not seen


@pytest.mark.parametrize("page", ["unread", "links", "scripts", "hashes", "frames"])
async def test_a_quiet_page_is_not_waited_for(box: Sandbox, page: str) -> None:
    """Unread bodies, fragment addresses and empty frames are not waited for."""
    made = Browser(box, pages=PAGES, load_seconds=600)
    made._settings["settle_seconds"] = 600  # waiting for something that never comes would fail
    async with made as browser, asyncio.timeout(120):
        look = await at(browser, page)
        found = [one for one in read_tree("", look.tree).items if one.name in {"Go", "Press"}]
        assert found, (page, look)
        for _ in range(3):  # Chromium has six connections to a host: unread bodies keep theirs
            await browser.act([Click(found[0].at)], PictureForm(form="jpeg"))


@pytest.mark.parametrize(
    "page",
    ["redirects", "refresh", "reload", "reload-often", "ping", "posts", "pushes", "hash-often"],
)
@pytest.mark.parametrize("form", [None, PictureForm(form="jpeg")])
async def test_redirects_without_end_are_bounded(
    browser: Browser, page: str, form: PictureForm | None
) -> None:
    """A page that navigates endlessly is stopped, and the browser can be used afterwards."""
    async with asyncio.timeout(180):
        look = await browser.act([GoTo(f"http://pages.test/{page}")], form)
        assert look.errors == ("",)
        assert "stopped" in await event(browser, look, "navigation")
        look = await browser.act([GoTo("http://pages.test/events")], form)
        assert (look.url, look.errors, look.events) == ("http://pages.test/events", ("",), ())
        look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


@pytest.mark.parametrize("frames", [1, 2])
async def test_a_document_that_comes_during_every_look_is_shown(
    browser: Browser, frames: int
) -> None:
    """A page that moves on before it could be looked at is stopped: a look is never empty."""
    look = await browser.act([GoTo(f"http://pages.test/slow-reload-{frames}")], PictureForm())
    assert look.picture is not None
    assert look.tree
    assert look.digest
    await browser.act([CloseTab()])


async def test_a_page_may_keep_what_is_typed_in_its_address(box: Sandbox) -> None:
    """Addresses that follow the agent's keys, or the host's scripts, do not count as endless."""
    # A browser of its own: Chromium ignores further addresses after 200 in ten seconds.
    async with Browser(box, pages=PAGES) as browser:
        look = await at(browser, "mirror")
        words = "each key times five"
        look = await browser.act([Click(item(look, "textbox", "Search")), TypeText(words)])
        assert (look.errors, kinds(look)) == (("", ""), [])
        assert look.url.endswith("five")
        script = "() => { for (let n = 0; n < 60; n++) history.replaceState({}, '', `?n=${n}`); }"
        await browser.evaluate(script)
        look = await browser.act([Click(item(look, "button", "Go"))])
        assert (look.errors, look.title, kinds(look)) == (("",), "pressed", [])


async def test_a_frame_that_always_reloads_leaves_its_page_usable(browser: Browser) -> None:
    """Endless activity in a frame is not waited for, and does not stop the page."""
    async with asyncio.timeout(180):
        look = await at(browser, "frame-reload")
        assert kinds(look) == []
        look = await browser.act([Click(item(look, "button", "Go"))])
        assert (look.errors, look.title) == (("",), "1")
        look = await at(browser, "events")
    assert look.url == "http://pages.test/events"
