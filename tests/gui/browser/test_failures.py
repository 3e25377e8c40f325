"""Pages that hang or crash, a browser that dies, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.gui.browser.pages import PAGES, at, event, item, kinds
from tests.gui.killing import kill
from tests.sandbox.outside import end_from_outside
from trajgym.envs.gui import BadAction, Browser, GuiDied, PictureForm, browser_spec
from trajgym.envs.gui.actions import Click, CloseTab, NewTab, Wait
from trajgym.envs.sandbox import DockerProvider, Sandbox, SandboxDied

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


async def test_a_page_that_hangs_is_interrupted(browser: Browser) -> None:
    """An endless script is stopped at the deadline, and the page can be used again."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "button", "Hang"))], PictureForm())
    assert kinds(look) == ["hang"]
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


async def test_a_page_that_crashes_is_loaded_anew(browser: Browser, box: Sandbox) -> None:
    """When a renderer crashes, the agent is informed, the page is lost, the session continues."""
    await at(browser, "events")
    await kill(box, "--type=renderer")
    look = await browser.act([Wait(0.1)], PictureForm())
    assert "reloaded" in await event(browser, look, "crash")
    look = await browser.look()
    assert look.url.endswith("/events")
    assert "Alert" in look.tree
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"


async def test_a_crash_is_a_turn_when_no_more_tabs_may_be_opened(box: Sandbox) -> None:
    """With all tabs open, a crashed page is loaded again; another tab is refused with an error."""
    async with Browser(box, pages=PAGES) as browser:
        await browser.act([NewTab()] * 7)
        look = await browser.act([NewTab()])
        assert "8 tabs are open" in look.errors[0]
        look = await at(browser, "events")
        assert len(look.tabs) == 8
        await kill(box, "--type=renderer")
        look = await browser.act([Wait(0.1)], PictureForm())
        assert "reloaded" in await event(browser, look, "crash")
        look = await browser.look()
        assert (len(look.tabs), look.url) == (8, "http://pages.test/events")


async def test_a_browser_that_dies_is_a_failure(browser_image: None) -> None:
    """If Chromium exits, pending calls raise an error with the cause; if the sandbox is gone, that.

    The first is brought about by a page, and its attempt is scored; the second is not.
    """
    async with DockerProvider() as provider, asyncio.timeout(200):
        sandbox = await provider.start(browser_spec())
        async with Browser(sandbox, pages=PAGES) as browser:
            await kill(sandbox, "^/usr/lib/chromium/chromium")
            with pytest.raises(GuiDied, match=r"Chromium|closed"):
                await browser.act([Wait(60)])
        async with Browser(sandbox, pages=PAGES) as browser:
            waiting = asyncio.ensure_future(browser.act([Wait(60)]))
            await sandbox.close()
            with pytest.raises(SandboxDied, match="closed"):
                await waiting
        sandbox = await provider.start(browser_spec())
        async with Browser(sandbox, pages=PAGES) as browser:
            waiting = asyncio.ensure_future(browser.act([Wait(60)]))
            end_from_outside(sandbox)
            with pytest.raises(SandboxDied):
                await waiting
        await sandbox.close()


async def test_what_is_no_request_is_refused(browser: Browser) -> None:
    """An unknown operation or a page that can't be opened is refused with an error."""
    with pytest.raises(BadAction, match="unknown operation"):
        await browser.ask("fly")
    with pytest.raises(BadAction, match="can't be opened"):
        await browser.goto("http://192.0.2.1/")


async def test_many_steps_leave_nothing_behind(browser: Browser, box: Sandbox) -> None:
    """Closed pages, tabs and dialogs leave no process and no element."""

    async def processes() -> int:
        done = await box.run("ls -d /proc/[0-9]* | wc -l")
        return int(done.stdout)

    async def once() -> None:
        look = await at(browser, "events")
        look = await browser.act([Click(item(look, "button", "Alert"))])
        look = await browser.act([Click(item(look, "link", "Other tab"))], PictureForm())
        assert len(look.tabs) == 2
        look = await browser.act([CloseTab()])
        assert len(look.tabs) == 1

    await once()
    before = await processes()
    for _ in range(15):
        await once()
    async with asyncio.timeout(60):
        while await processes() > before + 2:  # Chromium keeps a spare renderer now and then
            await browser.act([Wait(0.1)])
