"""Elements by id: their positions, and actions on them without the pointer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _scripts as scripts
from ._browser import Refused
from ._places import node_at

if TYPE_CHECKING:
    from ._browser import Browser

__all__ = ["centre_of", "check", "fill", "focus", "select", "upload"]

FILES = Path("/work")
"""Only files below this folder can be uploaded."""


def _gone(name: str) -> Refused:
    return Refused(f"there is no element [{name}] on this page any more; take a new observation")


def _node(browser: Browser, name: str) -> int:
    node = browser.tab.ids.nodes.get(name)
    if node is None:
        raise Refused(f"there is no element [{name}]; use an id of the last observation")
    return node


async def _object(browser: Browser, name: str) -> str:
    """Return the handle of a live element; for text, of the element around it."""
    from playwright.async_api import Error

    session, node = browser.tab.session, _node(browser, name)
    try:
        found = await session.send("DOM.resolveNode", {"backendNodeId": node})
        handle = str(found["object"]["objectId"])
        script = "function () { return this.isConnected; }"
        if not await _call(browser, handle, script):
            raise _gone(name)
    except Error as error:
        raise _gone(name) from error
    return handle


async def _call(browser: Browser, handle: str, script: str, *arguments: Any) -> Any:
    answer = await browser.tab.session.send(
        "Runtime.callFunctionOn",
        {
            "objectId": handle,
            "functionDeclaration": script,
            "arguments": [{"value": argument} for argument in arguments],
            "returnByValue": True,
            "userGesture": True,
        },
    )
    if "exceptionDetails" in answer:
        raise Refused("the page's own script failed: " + str(answer["exceptionDetails"]["text"]))
    return answer["result"].get("value")


async def centre_of(browser: Browser, name: str) -> tuple[float, float]:
    """Scroll an element into view and return its middle.

    Raises:
        Refused: the element is gone, has no size, or is covered.
    """
    handle = await _object(browser, name)
    area = await _call(browser, handle, scripts.AREA_MIDDLE)
    x, y = area or await _middle(browser, name)
    over = await _cover(browser, handle, x, y)
    if over:
        raise Refused(f"element [{name}] is covered by {over}")
    return x, y


async def _middle(browser: Browser, name: str) -> tuple[float, float]:
    from playwright.async_api import Error

    session, node = browser.tab.session, _node(browser, name)
    try:
        await session.send("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
        quads = (await session.send("DOM.getContentQuads", {"backendNodeId": node}))["quads"]
    except Error as error:
        raise Refused(f"element [{name}] is not visible") from error
    areas = [quad for quad in quads if _size(quad) >= 1]
    if not areas:
        raise Refused(f"element [{name}] is not visible: it has no size")
    return sum(areas[0][0::2]) / 4, sum(areas[0][1::2]) / 4


async def _cover(browser: Browser, handle: str, x: float, y: float) -> str:
    """Return what covers an element at a point; empty if nothing does."""
    from playwright.async_api import Error

    session = browser.tab.session
    hit = await node_at(browser.tab, x, y)
    if not hit:
        return ""
    try:
        found = await session.send("DOM.resolveNode", {"backendNodeId": hit})
    except Error:  # it was removed in the meantime
        return ""
    asked = {
        "objectId": handle,
        "functionDeclaration": scripts.COVERED,
        "arguments": [{"objectId": found["object"]["objectId"]}],
        "returnByValue": True,
    }
    try:
        answer = await session.send("Runtime.callFunctionOn", asked)
    except Error:  # the two are in different documents
        tag = await _call(browser, handle, "function () { return this.tagName; }")
        return "" if tag in {"IFRAME", "FRAME"} else "another document"
    return str(answer["result"].get("value") or "")


def _size(quad: list[float]) -> float:
    width = max(quad[0::2]) - min(quad[0::2])
    height = max(quad[1::2]) - min(quad[1::2])
    return width * height


async def focus(browser: Browser, name: str) -> None:
    """Focus an element."""
    from playwright.async_api import Error

    handle = await _object(browser, name)
    try:
        await browser.tab.session.send("DOM.focus", {"objectId": handle})
    except Error as error:
        raise Refused(f"element [{name}] can't have the focus") from error


async def fill(browser: Browser, name: str, text: str) -> None:
    """Replace the text of a field."""
    handle = await _object(browser, name)
    answer = await _call(browser, handle, scripts.FILL, text)
    if answer == "type":
        if text:
            await browser.tab.page.keyboard.insert_text(text)
        else:
            await browser.tab.page.keyboard.press("Delete")
    elif answer != "done":
        raise Refused(f"element [{name}] can't be filled: {answer}")


async def select(browser: Browser, name: str, options: list[str]) -> None:
    """Choose options of a drop-down field."""
    answer = await _call(browser, await _object(browser, name), scripts.SELECT, options)
    if answer != "done":
        raise Refused(f"element [{name}]: {answer}")


async def check(browser: Browser, name: str, *, wanted: bool) -> bool:
    """Return whether a box must be clicked to reach the wanted state."""
    state = await _call(browser, await _object(browser, name), scripts.CHECKED)
    if state is None:
        raise Refused(f"element [{name}] can't be checked or unchecked")
    return bool(state) != wanted


async def upload(browser: Browser, name: str | None, files: list[str]) -> None:
    """Upload files to a file field, or to the file dialog that the page has opened."""
    from playwright.async_api import Error

    paths = [(FILES / file).resolve() for file in files]
    for path in paths:
        if not path.is_relative_to(FILES) or not path.is_file():
            raise Refused(f"there is no file {path.name!r} in {FILES}")
    tab = browser.tab
    chooser, tab.chooser = tab.chooser, None
    if name is None and chooser is None:
        raise Refused("the page does not ask for a file; click its upload button first")
    field: dict[str, Any] = {"backendNodeId": chooser}
    if name is not None:
        field = {"objectId": await _object(browser, name)}
    files = [str(path) for path in paths]
    try:
        await tab.session.send("DOM.setFileInputFiles", {"files": files, **field})
    except Error as error:
        raise Refused("the element is not a file field") from error
