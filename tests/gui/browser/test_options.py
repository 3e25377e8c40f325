"""Options of a browser, and browsers that are launched before it is known who uses them."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from typing import Any

import pytest
from PIL import Image

from tests.gui.browser.pages import PAGES, item
from trajgym.envs.gui import Browser, PictureForm, browser_spec
from trajgym.envs.gui.actions import Click, GoTo, Size
from trajgym.envs.gui.browser import launch_browser
from trajgym.envs.sandbox import DockerProvider, Sandbox, WarmPool

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

WORLD = """() => [Math.random(), crypto.randomUUID(), new Date().toString(), navigator.language,
    devicePixelRatio, crypto.getRandomValues(new Uint8Array(4)).join()]"""


async def test_pages_see_the_world_that_was_chosen(box: Sandbox) -> None:
    """Clock, random numbers, language, time zone and device pixel ratio are as configured."""
    seen = []
    for seed in (7, 7, 8):
        async with Browser(
            box,
            pages=PAGES,
            locale="de-DE",
            timezone="Europe/Berlin",
            clock="2026-05-01T09:30:00Z",
            seed=seed,
            device_scale=2,
        ) as browser:
            look = await browser.act([GoTo("http://pages.test/")], PictureForm())
            assert look.picture is not None
            with Image.open(io.BytesIO(look.picture.data)) as picture:
                assert picture.size == (1280, 720)
            seen.append(await browser.evaluate(WORLD))
    assert seen[0] == seen[1]
    assert seen[0][:2] != seen[2][:2]
    assert seen[0][2].startswith("Fri May 01 2026 11:30:00 GMT+0200")
    assert seen[0][3:5] == ["de-DE", 2]


PHONE = """() => [innerWidth, navigator.maxTouchPoints > 0, /Android.*Mobile/.test(
    navigator.userAgent), matchMedia('(pointer: coarse)').matches]"""


async def test_pages_see_a_telephone(box: Sandbox) -> None:
    """With mobile, pages have the viewport, touch events and user agent of a telephone."""
    size = Size(390, 844)
    async with Browser(box, pages=PAGES, size=size, mobile=True, device_scale=2) as browser:
        look = await browser.act([GoTo("http://pages.test/touch")], PictureForm())
        assert look.picture is not None
        with Image.open(io.BytesIO(look.picture.data)) as picture:
            assert picture.size == size
        assert await browser.evaluate(PHONE) == [390, True, True, True]
        look = await browser.act([Click(item(look, "button", "Tap"))])
        assert look.title == "touchstart click"
    async with Browser(box, pages=PAGES, user_agent="Some Browser/1.0") as browser:
        assert await browser.evaluate("() => navigator.userAgent") == "Some Browser/1.0"


STORE = "() => { localStorage.kept = '1'; document.cookie = 'kept=1'; }"
STORED = "() => [localStorage.length, document.cookie, history.length]"


async def test_a_browser_launched_with_the_session_s_options_is_open(browser_image: None) -> None:
    """Its empty tab is the session's: options hold, nothing of the rehearsal is left."""
    spec = browser_spec()
    options: dict[str, Any] = {"size": Size(640, 480), "locale": "de-DE", "seed": 3}
    async with WarmPool(DockerProvider(), idle=1) as pool, asyncio.timeout(300):
        pool.prepare(spec, partial(launch_browser, **options))
        await pool.warm(spec)
        async with await pool.start(spec) as sandbox:
            async with Browser(sandbox, pages=PAGES, **options) as browser:
                look = await browser.look(PictureForm())
                assert (look.url, look.tabs, look.events) == ("about:blank", ("about:blank",), ())
                look = await browser.act([GoTo("http://pages.test/")], PictureForm())
                assert look.errors == ("",)
                assert look.picture is not None
                assert Image.open(io.BytesIO(look.picture.data)).size == (640, 480)
                assert await browser.evaluate(STORED) == [0, "", 2]
                assert await browser.evaluate("() => navigator.language") == "de-DE"
                look = await browser.act([GoTo("http://rehearsal.test/")])
                assert "no such site" in look.tree


async def test_a_browser_that_was_launched_ahead_serves_one_session(browser_image: None) -> None:
    """A browser launched in advance has the session's settings, and no earlier session's state."""
    spec = browser_spec()
    async with WarmPool(DockerProvider(), idle=1) as pool, asyncio.timeout(300):
        pool.prepare(spec, launch_browser)
        seen = []
        for language in ("de-DE", "fr-FR"):
            await pool.warm(spec)
            assert pool.ready(spec) == 1
            async with await pool.start(spec) as sandbox:
                running = await sandbox.run("ls /proc/*/exe -l 2>/dev/null | grep -c chromium")
                assert int(running.stdout) > 0  # before a browser is opened
                async with Browser(sandbox, pages=PAGES, locale=language) as browser:
                    await browser.act([GoTo("http://pages.test/")])
                    seen.append(await browser.evaluate(STORED))
                    assert await browser.evaluate("() => navigator.language") == language
                    await browser.evaluate(STORE)
                # The driver was used up: another browser in this sandbox starts its own.
                async with Browser(sandbox, hosts={"else.example": "127.0.0.1:9"}) as other:
                    assert await other.evaluate("() => 1") == 1
        assert seen == [[0, "", 2], [0, "", 2]]
