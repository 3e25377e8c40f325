"""Looking at a page: picture, elements, address, and what has happened since."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

from ._browser import Refused
from ._settle import settle
from ._tree import Line, lines_of, render

if TYPE_CHECKING:
    from ._browser import Browser
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
        browser: what is looked at: its active tab.
        wanted: ``screenshot`` (``format``, ``quality``, ``width``, ``height``) or None, ``tree``
            (most characters) or None, ``boxes`` (whether to say where the elements are).
    """
    from playwright.async_api import Error

    seen: dict[str, Any] = {}
    waited = False
    for attempt in range(_ATTEMPTS):
        tab, visits = browser.tab, browser.tab.visits
        if tab.dialog is not None:
            seen = {"dialog": {"type": tab.dialog.type, "message": tab.dialog.message[:500]}}
            break
        try:
            found = await browser.guarded(_look(browser, tab, wanted), LOOK_SECONDS)
        except (Error, Refused):
            if attempt == _ATTEMPTS - 1:
                raise
            found = None  # it went elsewhere while we looked, or was interrupted
            await asyncio.sleep(_PAUSE)
        await browser.mend()
        if found is None:
            continue
        same = tab is browser.tab and visits == tab.visits and not tab.opening
        # What scripts load is waited for once: some pages never stop.
        if same and not (tab.travelling or (tab.loading and not waited)):
            seen = _named(tab, found, wanted)
            break
        waited = True
        if attempt < _ATTEMPTS - 1:
            await settle(browser)
        else:
            seen = _named(tab, found, wanted)  # it never stops: as it is now
    seen["url"] = browser.tab.page.url
    seen["tabs"] = [tab.page.url for tab in browser.tabs]
    seen["active"] = browser.active
    seen["pointer"] = list(browser.pointer)
    seen["events"], browser.events = browser.events, []
    seen["dropped"], browser.dropped = browser.dropped, 0
    return seen


async def _look(browser: Browser, tab: Tab, wanted: dict[str, Any]) -> dict[str, Any]:
    # All at once: while the picture waits for its frame, the rest is answered.
    work = [
        _screenshot(browser, tab, wanted["screenshot"]) if wanted.get("screenshot") else _none(),
        _elements(browser, tab, wanted) if wanted.get("tree") else _none(),
        _title(tab) if wanted.get("title") else _none(),
    ]
    picture, elements, title = await asyncio.gather(*work)
    return {**(picture or {}), **(elements or {}), **(title or {})}


async def _none() -> dict[str, Any]:
    return {}


async def _title(tab: Tab) -> dict[str, Any]:
    said = await tab.session.send("Runtime.evaluate", {"expression": "document.title"})
    return {"title": str(said["result"].get("value", ""))[:200]}


async def _elements(browser: Browser, tab: Tab, wanted: dict[str, Any]) -> dict[str, Any]:
    lines = await _lines(tab)
    areas = await _areas(browser, tab) if wanted.get("boxes") else None
    return {"lines": lines, "areas": areas}


def _named(tab: Tab, found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Give the elements of a look their ids: only of one that counts, so that replays agree."""
    lines, areas = found.pop("lines", None), found.pop("areas", None)
    if lines is None:
        return found
    tree = render(lines, tab.ids, int(wanted["tree"]))
    found["tree"], found["focused"] = tree.text, tree.focused
    found["digest"] = hashlib.sha256((tab.page.url + tree.digest).encode()).hexdigest()
    if wanted.get("order"):
        found["order"] = tree.order
    if areas is not None:
        names = {node: tab.ids.by_node.get(node, "") for node in areas}
        roles = {node: tab.ids.roles.get(name) for node, name in names.items()}
        found["boxes"] = {names[n]: area for n, area in areas.items() if roles[n] in _MARKED}
    return found


async def _screenshot(browser: Browser, tab: Tab, wanted: dict[str, Any]) -> dict[str, Any]:
    settings = browser.settings
    options: dict[str, Any] = {"format": wanted["format"], "captureBeyondViewport": False}
    if wanted["format"] == "jpeg":
        options["quality"] = wanted["quality"]
    else:
        options["optimizeForSpeed"] = bool(wanted.get("fast"))
    if (wanted["width"], wanted["height"]) != (settings.width, settings.height):
        view = await tab.session.send("Page.getLayoutMetrics")
        area = view["cssVisualViewport"]
        options["clip"] = {
            "x": area["pageX"],
            "y": area["pageY"],
            "width": settings.width,
            "height": settings.height,
            "scale": wanted["width"] / settings.width,
        }
    said = await tab.session.send("Page.captureScreenshot", options)
    return {"screenshot": str(said["data"])}


async def _lines(tab: Tab) -> list[Line]:
    said = await tab.session.send("Accessibility.getFullAXTree")
    lines = lines_of(said["nodes"])
    if len(tab.page.frames) > 1:
        lines = await _with_frames(tab, lines)
    return lines


async def _with_frames(tab: Tab, lines: list[Line]) -> list[Line]:
    """Put the elements of frames below the elements that hold them."""
    from playwright.async_api import Error

    tree = (await tab.session.send("Page.getFrameTree"))["frameTree"]
    waiting = list(tree.get("childFrames", ()))
    while waiting:
        frame = waiting.pop(0)
        waiting += frame.get("childFrames", ())
        try:
            owner = await tab.session.send("DOM.getFrameOwner", {"frameId": frame["frame"]["id"]})
            said = await tab.session.send(
                "Accessibility.getFullAXTree", {"frameId": frame["frame"]["id"]}
            )
        except Error:  # it has gone while we looked
            continue
        at = next((i for i, line in enumerate(lines) if line.node == owner["backendNodeId"]), None)
        if at is None:
            continue
        inner = [line for line in lines_of(said["nodes"], lines[at].depth) if line.role != "page"]
        lines = [*lines[: at + 1], *inner, *lines[at + 1 :]]
    return lines


async def _areas(browser: Browser, tab: Tab) -> dict[int, list[float]]:
    """Return ``{node: [x, y, width, height]}`` of what is in view of the main document."""
    said = await tab.session.send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    document = said["documents"][0]
    left, top = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
    nodes, layout = document["nodes"]["backendNodeId"], document["layout"]
    areas: dict[int, list[float]] = {}
    for index, (x, y, width, height) in zip(layout["nodeIndex"], layout["bounds"], strict=True):
        x, y = x - left, y - top
        inside = x < browser.settings.width and y < browser.settings.height
        if width >= 1 and height >= 1 and inside and x + width > 0 and y + height > 0:
            areas[nodes[index]] = [round(x, 1), round(y, 1), round(width, 1), round(height, 1)]
    return areas
