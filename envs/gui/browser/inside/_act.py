"""Executing actions in the wire form of the library."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import _elements as elements
from ._browser import Browser, BrowserGone, Refused, first_line
from ._loads import STOP_SECONDS
from ._settle import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ._tab import Tab

__all__ = ["perform"]

_SCHEMES = {"http", "https"}
_KEYS_A_SECOND = 100
_PLAIN = {"say", "give_up", "finish"}
_NAVIGATIONS = {"go_to", "go_back", "go_forward"}
_EMPTY = "about:blank"
_TRIES = 3
"""Attempts to leave a page that navigates by itself."""
_INTERRUPTED = "interrupted by another navigation"
"""Part of Playwright's message."""


async def perform(
    browser: Browser, action: dict[str, Any], *, at_rest: bool = True
) -> dict[str, Any]:
    """Execute one action and wait for its effects.

    Args:
        browser: the action is executed in its active tab.
        action: in wire form.
        at_rest: whether to wait for all effects; if False, only loads that have begun are waited
            for.

    Returns:
        ``ok``; ``found`` if the action named an element; ``error`` for the agent if it is not ok.

    Raises:
        BrowserGone: Chromium has ended.
    """
    named = [at for at in (action.get("at"), *(action.get("path") or ())) if isinstance(at, str)]
    result: dict[str, Any] = {"ok": True}
    if named:
        result["found"] = True
    try:
        seconds = browser.settings.action_seconds + STOP_SECONDS
        await browser.guarded(_resume(browser, action), seconds)
        if browser.tab.dialog is not None:
            await _answer_dialog(browser, action)
            await settle(browser)
        else:
            await _perform(browser, action, at_rest=at_rest)
    except Refused as refusal:
        result |= {"ok": False, "error": str(refusal)}
        if named and "there is no element" in str(refusal):
            result["found"] = False
    except BrowserGone:
        raise
    except Exception as error:  # noqa: BLE001 - boundary: the agent gets the message of Playwright
        result |= {"ok": False, "error": first_line(error)}
    await browser.adopted()
    await browser.mend()
    return result


async def _perform(browser: Browser, action: dict[str, Any], *, at_rest: bool) -> None:
    make = _ACTIONS.get(action["do"])
    if make is None:
        if action["do"] in _PLAIN:
            return
        raise Refused(f"a browser has no action {action['do']!r}")
    settings = browser.settings
    seconds = settings.action_seconds + float(action.get("seconds") or 0)
    seconds += len(str(action.get("text") or "")) / _KEYS_A_SECOND
    if action["do"] in _NAVIGATIONS:
        seconds += settings.load_seconds
    loads = browser.tab.loads
    if action["do"] not in _NAVIGATIONS:
        loads.begin_input()
    try:
        await browser.guarded(make(browser, action), seconds)
    finally:
        try:
            await browser.adopted()
            if not (at_rest or browser.tab.crashed or browser.tab.dialog):
                await browser.guarded(browser.tab.listen(), settings.action_seconds)
            if at_rest or browser.tab.restless:
                await settle(browser)
        finally:
            loads.end_input()  # the action may have led to another tab


async def _resume(browser: Browser, action: dict[str, Any]) -> None:
    """Let a stopped page continue, unless the action leaves it."""
    tab = browser.tab
    if action["do"] == "go_to" and tab.loads.hopping:
        await _leave(tab)
    await tab.loads.resume()


async def _leave(tab: Tab) -> None:
    """Replace a page that navigates by itself by an empty one.

    A navigation that the page began may arrive after the empty page, or prevent it; Chromium would
    attribute it to the next page. While the page is stopped it is aborted.
    """
    from playwright.async_api import Error

    for _ in range(_TRIES):
        await tab.loads.stop()
        with contextlib.suppress(Error):
            await tab.page.goto(_EMPTY, wait_until="commit")
        await tab.listen()
        if await tab.loads.come_to_rest() and tab.page.url == _EMPTY:
            return


async def _answer_dialog(browser: Browser, action: dict[str, Any]) -> None:
    """Answer a dialog by keys."""
    tab, do = browser.tab, action["do"]
    assert tab.dialog is not None
    if do == "type_text":
        text, enter, _ = str(action["text"]).partition("\n")
        if enter or tab.dialog.type == "prompt":
            await browser.answer(text, accept=True)
            return
    if do == "press_keys" and action["keys"] in (["Enter"], ["Space"]):
        await browser.answer(None, accept=True)
        return
    if do == "press_keys" and action["keys"] == ["Escape"]:
        await browser.answer(None, accept=False)
        return
    if do in {"wait", "screenshot", "zoom"}:
        return
    raise Refused(
        f"a dialog is open ({tab.dialog.type}: {tab.dialog.message[:200]}); press Enter to accept, "
        "Escape to dismiss; for a prompt, type the text"
    )


async def _point(browser: Browser, at: Any) -> tuple[float, float]:
    if isinstance(at, str):
        return await elements.centre_of(browser, at)
    return float(at[0]), float(at[1])


async def _go(browser: Browser, at: Any) -> None:
    """Move the pointer; None leaves it where it is."""
    if at is not None:
        x, y = await _point(browser, at)
        await browser.tab.page.mouse.move(x, y)
        browser.pointer = (x, y)


@contextlib.asynccontextmanager
async def _holding(browser: Browser, keys: list[str]) -> AsyncIterator[None]:
    keyboard = browser.tab.page.keyboard
    pressed: list[str] = []
    try:
        for key in keys:
            await keyboard.down(key)
            pressed.append(key)
        yield
    finally:
        for key in reversed(pressed):
            with contextlib.suppress(Exception):  # the tab may already be closed
                await keyboard.up(key)


async def _click(browser: Browser, action: dict[str, Any]) -> None:
    button, page = action.get("button", "left"), browser.tab.page
    if action["at"] is not None:
        browser.pointer = await _point(browser, action["at"])
    if button in {"back", "forward"}:
        await (_back if button == "back" else _forward)(browser, action)
        return
    async with _holding(browser, action.get("keys") or []):
        count = int(action.get("count", 1))
        x, y = browser.pointer
        if browser.settings.mobile and button == "left":
            for _ in range(count):
                await page.touchscreen.tap(x, y)
        else:
            await page.mouse.click(x, y, button=button, click_count=count)


async def _move(browser: Browser, action: dict[str, Any]) -> None:
    async with _holding(browser, action.get("keys") or []):
        await _go(browser, action["at"])


async def _down(browser: Browser, action: dict[str, Any]) -> None:
    await browser.tab.page.mouse.down(button=action.get("button", "left"))


async def _up(browser: Browser, action: dict[str, Any]) -> None:
    await browser.tab.page.mouse.up(button=action.get("button", "left"))


async def _drag(browser: Browser, action: dict[str, Any]) -> None:
    mouse = browser.tab.page.mouse
    first, *rest = action["path"]
    async with _holding(browser, action.get("keys") or []):
        await _go(browser, first)
        await mouse.down(button=action.get("button", "left"))
        try:
            for at in rest:
                x, y = await _point(browser, at)
                # Pages start a drag only after some movement.
                await mouse.move(x, y, steps=5)
                browser.pointer = (x, y)
        finally:
            await mouse.up(button=action.get("button", "left"))


async def _scroll(browser: Browser, action: dict[str, Any]) -> None:
    page = browser.tab.page
    if action["at"] is None:
        size = browser.settings
        await page.mouse.move(size.width / 2, size.height / 2)
    await _go(browser, action["at"])
    async with _holding(browser, action.get("keys") or []):
        await page.mouse.wheel(action["dx"], action["dy"])
    # The event is delivered immediately; the compositor scrolls in its next frames.
    await page.evaluate(_FRAMES)


_FRAMES = "() => new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))"


async def _type(browser: Browser, action: dict[str, Any]) -> None:
    keyboard = browser.tab.page.keyboard
    for number, line in enumerate(str(action["text"]).split("\n")):
        if number:
            await keyboard.press("Enter")
        if line:
            await keyboard.type(line)


async def _press(browser: Browser, action: dict[str, Any]) -> None:
    keys = list(action["keys"])
    async with _holding(browser, keys):
        if action.get("seconds"):
            await asyncio.sleep(float(action["seconds"]))


async def _key_down(browser: Browser, action: dict[str, Any]) -> None:
    await browser.tab.page.keyboard.down(action["key"])


async def _key_up(browser: Browser, action: dict[str, Any]) -> None:
    await browser.tab.page.keyboard.up(action["key"])


async def _wait(browser: Browser, action: dict[str, Any]) -> None:
    del browser
    await asyncio.sleep(float(action["seconds"]))


async def _nothing(browser: Browser, action: dict[str, Any]) -> None:
    del browser, action


async def _fill(browser: Browser, action: dict[str, Any]) -> None:
    await elements.fill(browser, action["at"], str(action["text"]))


async def _select(browser: Browser, action: dict[str, Any]) -> None:
    await elements.select(browser, action["at"], list(action["options"]))


async def _check(browser: Browser, action: dict[str, Any]) -> None:
    if await elements.check(browser, action["at"], wanted=bool(action["checked"])):
        await _click(browser, {"at": action["at"]})


async def _focus(browser: Browser, action: dict[str, Any]) -> None:
    await elements.focus(browser, action["at"])


async def _upload(browser: Browser, action: dict[str, Any]) -> None:
    await elements.upload(browser, action["at"], list(action["files"]))


async def _open(browser: Browser, action: dict[str, Any]) -> None:
    from playwright.async_api import Error

    url = str(action["url"]).strip()
    if url != _EMPTY:
        url = url if "://" in url else f"http://{url}"
        if urlsplit(url).scheme not in _SCHEMES:
            raise Refused(f"only addresses of http and https can be opened, not {url[:80]}")
    limit = browser.settings.load_seconds * 1000
    for tries in range(_TRIES, 0, -1):
        try:
            await browser.tab.page.goto(url, timeout=limit, wait_until="commit")
        except Error as error:
            # The page that is left may navigate by itself at the same moment.
            if tries == 1 or _INTERRUPTED not in str(error):
                raise
        else:
            return


async def _back(browser: Browser, action: dict[str, Any]) -> None:
    del action
    limit = browser.settings.load_seconds * 1000
    before = browser.tab.page.url
    if (
        await browser.tab.page.go_back(timeout=limit, wait_until="commit") is None
        and browser.tab.page.url == before
    ):
        raise Refused("there is no earlier page in this tab")


async def _forward(browser: Browser, action: dict[str, Any]) -> None:
    del action
    limit = browser.settings.load_seconds * 1000
    before = browser.tab.page.url
    if (
        await browser.tab.page.go_forward(timeout=limit, wait_until="commit") is None
        and browser.tab.page.url == before
    ):
        raise Refused("there is no later page in this tab")


async def _new_tab(browser: Browser, action: dict[str, Any]) -> None:
    del action
    await browser.new_tab()


async def _close_tab(browser: Browser, action: dict[str, Any]) -> None:
    del action
    await browser.close_tab()


async def _focus_tab(browser: Browser, action: dict[str, Any]) -> None:
    await browser.focus_tab(int(action["index"]))


_ACTIONS: dict[str, Callable[[Browser, dict[str, Any]], Coroutine[Any, Any, None]]] = {
    "click": _click,
    "move": _move,
    "mouse_down": _down,
    "mouse_up": _up,
    "drag": _drag,
    "scroll": _scroll,
    "type_text": _type,
    "press_keys": _press,
    "key_down": _key_down,
    "key_up": _key_up,
    "wait": _wait,
    "screenshot": _nothing,
    "zoom": _nothing,
    "cursor_position": _nothing,
    "fill": _fill,
    "select_option": _select,
    "set_checked": _check,
    "focus": _focus,
    "upload_file": _upload,
    "go_to": _open,
    "go_back": _back,
    "go_forward": _forward,
    "new_tab": _new_tab,
    "close_tab": _close_tab,
    "focus_tab": _focus_tab,
}
