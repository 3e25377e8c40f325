"""What pages do to the browser: dialogs, tabs, downloads and messages of the console."""

from __future__ import annotations

import re

import pytest

from tests.gui.browser.pages import PAGES, at, event, item, kinds
from trajgym.envs.gui import Browser, PictureForm
from trajgym.envs.gui.actions import (
    Click,
    CloseTab,
    FocusTab,
    PressKeys,
    TypeText,
    UploadFile,
    Wait,
)
from trajgym.envs.sandbox import Sandbox

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


async def test_dialogs_are_answered_and_told(browser: Browser) -> None:
    """An alert does not block the page, and the agent reads its text."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "button", "Alert"))])
    assert look.title == "after"
    assert [event.text for event in look.events] == ["alert: Hello (accepted)"]


async def test_a_dialog_can_wait_for_the_agent(box: Sandbox) -> None:
    """With `ask` a dialog stays open over the page until keys answer it."""
    async with Browser(box, pages=PAGES, dialogs="ask") as browser:
        look = await at(browser, "events")
        prompt = item(look, "button", "Prompt")
        look = await browser.act([Click(prompt)], PictureForm())
        assert look.dialog == ("prompt", "Who?")
        assert look.picture is None
        look = await browser.act([Click(prompt)])
        assert "a dialog is open" in look.errors[0]
        look = await browser.act([TypeText("Ann")])
        assert (look.dialog, look.title) == (None, "Ann")
        look = await browser.act([Click(item(look, "button", "Alert"))])
        look = await browser.act([PressKeys(("Enter",))])
        assert look.title == "after"


async def test_tabs(browser: Browser) -> None:
    """A tab that a page opens becomes the current one; the last one is replaced when it closes."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Other tab"))])
    assert (look.active, len(look.tabs), look.title) == (1, 2, "Start")
    look = await browser.act([FocusTab(0)])
    assert look.url.endswith("/events")
    look = await browser.act([FocusTab(1), CloseTab(), CloseTab()])
    assert look.tabs == ("about:blank",)
    assert "tab" in kinds(look)
    look = await browser.act([FocusTab(7)])
    assert "no tab 7" in look.errors[0]


async def test_a_tab_that_closes_itself(browser: Browser) -> None:
    """When a tab closes itself, the previous one becomes the current one."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Short tab"))])
    while len(look.tabs) > 1:
        look = await browser.act([Wait(0.1)])
    assert look.url.endswith("/events")


async def test_many_tabs_at_once_are_bounded(box: Sandbox) -> None:
    """Tabs that a page opens at the same time count, too."""
    async with Browser(box, pages=PAGES) as browser:
        look = await at(browser, "popups")
        look = await browser.act([Click(item(look, "button", "Open"))])
        while not any("it was closed" in one.text for one in look.events):
            look = await browser.act([Wait(0.1)])
        assert len(look.tabs) <= 8


async def test_downloads_stay_in_the_sandbox(browser: Browser, box: Sandbox) -> None:
    """A download is saved in the sandbox under a plain name, and can be uploaded again."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "link", "Download"))])
    told = await event(browser, look, "download")
    found = re.match(r"/work/(downloads/[\w .-]+) \(3 bytes\)", told)
    assert found
    assert await box.read_file(found[1]) == b"a,b"

    field = item(look, "button", "Field")
    look = await browser.act([UploadFile(field, (found[1],))])
    assert look.title == found[1].removeprefix("downloads/")
    look = await browser.act([Click(item(look, "button", "Choose"))])
    assert "asks for a file" in await event(browser, look, "chooser")
    look = await browser.act([UploadFile(None, (found[1],))])
    assert look.title == "3"
    look = await browser.act([UploadFile(field, ("../etc/passwd",))])
    assert "no file" in look.errors[0]


async def test_console_and_errors_are_told_and_bounded(browser: Browser) -> None:
    """Console messages of pages are reported, and too many are truncated and counted."""
    look = await at(browser, "events")
    look = await browser.act([Click(item(look, "button", "Log"))])
    assert ("console", "log: said") in look.events
    assert any(event.kind == "error" and "thrown" in event.text for event in look.events)
    look = await at(browser, "many")
    assert len(look.events) <= 50
    assert look.dropped >= 400
    assert max(len(event.text) for event in look.events) <= 500
    assert len(look.tree) < 13_000
    assert "more elements left out" in look.tree
