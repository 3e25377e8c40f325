"""Observing a page: picture, elements, address, and events."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

from ._browser import Refused
from ._large import MOST_ELEMENTS, lines_in_view
from ._places import Place, find_places
from ._settle import settle, stop
from ._snapshot import take_snapshot
from ._tree import Line, lines_of, render

if TYPE_CHECKING:
    from ._browser import Browser
    from ._snapshot import Node
    from ._tab import Tab

__all__ = ["look"]

LOOK_SECONDS = 10.0
_ATTEMPTS = 5
_PAUSE = 0.3
_MARKED = {
    *("button", "checkbox", "combobox", "link", "menuitem", "option", "radio", "searchbox"),
    *("slider", "spinbutton", "switch", "tab", "textbox", "treeitem", "Date", "ColorWell"),
    *("menuitemcheckbox", "menuitemradio", "listbox", "DateTime", "InputTime"),
}


async def look(browser: Browser, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return an observation.

    Args:
        browser: its active tab is observed.
        wanted: ``screenshot`` (``format``, ``quality``, ``width``, ``height``) or None, ``tree``
            (most characters) or None, ``boxes`` (whether to report positions of elements), ``html``
            (most characters of pruned HTML) or None.
    """
    from playwright.async_api import Error

    seen: dict[str, Any] = {}
    waited = False
    looks = missed = 0
    while True:
        tab, visits = browser.tab, browser.tab.visits
        if tab.dialog is not None:
            seen = {"dialog": {"type": tab.dialog.type, "message": tab.dialog.message[:500]}}
            break
        problem: Exception | None = None
        try:
            work = tab.loads.unless_moved(_look(browser, tab, wanted), missed)
            found = await browser.guarded(work, LOOK_SECONDS)
        except (Error, Refused) as error:
            found, problem = None, error
            await asyncio.sleep(_PAUSE)  # it navigated during the look, or was interrupted
        await browser.mend()
        if found is None:
            missed += 1
            if missed >= _ATTEMPTS:
                await _missed(browser, problem, last=missed >= 2 * _ATTEMPTS)
            await settle(browser)
            continue
        looks += 1
        last = looks == _ATTEMPTS
        if tab.loads.endless and not tab.loads.stopped and not last:
            await settle(browser)
            continue
        same = tab is browser.tab and visits == tab.visits and not tab.opening
        # Wait for further loads once only: some pages never stop.
        if tab.loads.stopped or (same and (waited or tab.loads.left(urgent=True) <= 0)) or last:
            seen = _named(tab, found, wanted)  # the last one shows a page that never stops
            break
        waited = True
        await settle(browser)
    seen["url"] = browser.tab.page.url
    seen["tabs"] = [tab.page.url for tab in browser.tabs]
    seen["active"] = browser.active
    seen["pointer"] = list(browser.pointer)
    seen["events"], browser.events = browser.events, []
    seen["dropped"], browser.dropped = browser.dropped, 0
    if browser.replay is not None:
        seen["unmatched"] = browser.replay.report()
    return seen


async def _missed(browser: Browser, problem: Exception | None, *, last: bool) -> None:
    """Stop a page that brought another document during each of several looks.

    Raises:
        Exception: the problem of a look that failed.
        Refused: the page can't be shown although it was stopped.
    """
    if problem is not None:
        raise problem
    if browser.tab.dialog is not None:
        return  # which is what the next look shows
    if last:
        raise Refused("the page was stopped, and shows nothing")
    if not browser.tab.loads.stopped:
        await stop(browser)


async def _look(browser: Browser, tab: Tab, wanted: dict[str, Any]) -> dict[str, Any]:
    # Concurrently: the rest is answered while the screenshot waits for a frame.
    work = [
        _screenshot(browser, tab, wanted["screenshot"]) if wanted.get("screenshot") else _none(),
        _page(browser, tab, wanted),
    ]
    picture, elements = await asyncio.gather(*work)
    return {**picture, **elements}


async def _none() -> dict[str, Any]:
    return {}


_COUNT = "[document.title, document.getElementsByTagName('*').length]"


async def _page(browser: Browser, tab: Tab, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return title and elements; of a large page, only the elements that are in view."""
    expression = {"expression": _COUNT, "returnByValue": True}
    answer = (await tab.session.send("Runtime.evaluate", expression))["result"].get("value")
    title, count = answer if isinstance(answer, list) else ("", 0)
    found: dict[str, Any] = {"title": str(title)[:200]}
    if not wanted.get("tree"):
        return found
    if isinstance(count, int) and count > MOST_ELEMENTS:
        lines, boxes = await lines_in_view(tab)
        places = {node: Place(box) for node, box in boxes.items()}
        return found | {"lines": lines, "places": places, "listed": count}
    snapshot, answer = await asyncio.gather(
        take_snapshot(tab.session), tab.session.send("Accessibility.getFullAXTree")
    )
    clickable = snapshot.clickable()
    lines = lines_of(answer["nodes"], 0, clickable)
    if len(tab.page.frames) > 1:
        lines = await _with_frames(tab, lines, clickable)
    found |= {"lines": lines, "snapshot": snapshot}
    if wanted.get("boxes"):
        found["places"] = await find_places(browser, tab, snapshot, lines)
    return found


def _named(tab: Tab, found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Assign ids to elements; only for the look that is returned, so that replays agree."""
    lines, places = found.pop("lines", None), found.pop("places", None)
    listed, snapshot = found.pop("listed", None), found.pop("snapshot", None)
    if lines is None:
        return found
    tree = render(lines, tab.ids, int(wanted["tree"]))
    found["tree"], found["focused"] = tree.text, tree.focused
    if listed is not None:
        found["tree"] += f"\n[... the page has {listed} elements; listed is what is in view ...]"
    found["digest"] = hashlib.sha256((tab.page.url + tree.digest).encode()).hexdigest()
    if wanted.get("order"):
        found["order"] = tree.order
    if places is not None:
        found["elements"] = [
            {
                "id": name,
                "role": line.role,
                "name": line.name,
                "box": places[line.node].box,
                "clickable": line.clickable or line.role in _MARKED,
                "covered": places[line.node].covered,
            }
            for line in lines
            if line.node in places and (name := tab.ids.by_node.get(line.node))
        ]
    if wanted.get("html") and snapshot is not None:
        found["html"] = snapshot.html(tab.ids.by_node, int(wanted["html"]))
    return found


async def _screenshot(browser: Browser, tab: Tab, wanted: dict[str, Any]) -> dict[str, Any]:
    settings = browser.settings
    options: dict[str, Any] = {"format": wanted["format"], "captureBeyondViewport": False}
    if wanted["format"] == "jpeg":
        options["quality"] = wanted["quality"]
    else:
        options["optimizeForSpeed"] = bool(wanted.get("fast"))
    left, top, right, bottom = wanted.get("area") or (0, 0, settings.width, settings.height)
    scale = wanted["width"] / ((right - left) * settings.scale)
    if scale != 1 or wanted.get("area"):
        view = await tab.session.send("Page.getLayoutMetrics")
        area = view["cssVisualViewport"]
        options["clip"] = {
            "x": area["pageX"] + left,
            "y": area["pageY"] + top,
            "width": right - left,
            "height": bottom - top,
            "scale": scale,
        }
    answer = await tab.session.send("Page.captureScreenshot", options)
    return {"screenshot": str(answer["data"])}


async def _with_frames(tab: Tab, lines: list[Line], clickable: dict[int, Node]) -> list[Line]:
    """Insert the elements of frames below their frame elements."""
    from playwright.async_api import Error

    tree = (await tab.session.send("Page.getFrameTree"))["frameTree"]
    waiting = list(tree.get("childFrames", ()))
    while waiting:
        frame = waiting.pop(0)
        waiting += frame.get("childFrames", ())
        try:
            owner = await tab.session.send("DOM.getFrameOwner", {"frameId": frame["frame"]["id"]})
            answer = await tab.session.send(
                "Accessibility.getFullAXTree", {"frameId": frame["frame"]["id"]}
            )
        except Error:  # the frame was removed during the look
            continue
        at = next((i for i, line in enumerate(lines) if line.node == owner["backendNodeId"]), None)
        if at is None:
            continue
        inside = lines_of(answer["nodes"], lines[at].depth, clickable)
        inner = [line for line in inside if line.role != "page"]
        lines = [*lines[: at + 1], *inner, *lines[at + 1 :]]
    return lines
