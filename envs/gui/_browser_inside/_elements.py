"""Elements by id: where they are, and what is done to them without a pointer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _scripts as scripts
from ._browser import Refused

if TYPE_CHECKING:
    from ._browser import Browser

__all__ = ["centre_of", "check", "fill", "focus", "select", "upload"]

FILES = Path("/work")
"""Only what lies here can be handed to a page."""


def _gone(name: str) -> Refused:
    return Refused(f"there is no element [{name}] on this page any more; look again")


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
    said = await browser.tab.session.send(
        "Runtime.callFunctionOn",
        {
            "objectId": handle,
            "functionDeclaration": script,
            "arguments": [{"value": argument} for argument in arguments],
            "returnByValue": True,
            "userGesture": True,
        },
    )
    if "exceptionDetails" in said:
        raise Refused("the page's own script failed: " + str(said["exceptionDetails"]["text"]))
    return said["result"].get("value")


async def centre_of(browser: Browser, name: str) -> tuple[float, float]:
    """Scroll an element into view and return its middle.

    Raises:
        Refused: it is gone, has no size, or something lies over it.
    """
    from playwright.async_api import Error

    handle = await _object(browser, name)
    session, node = browser.tab.session, _node(browser, name)
    try:
        await session.send("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
        quads = (await session.send("DOM.getContentQuads", {"backendNodeId": node}))["quads"]
    except Error as error:
        raise Refused(f"element [{name}] is not visible") from error
    areas = [quad for quad in quads if _area(quad) >= 1]
    if not areas:
        raise Refused(f"element [{name}] is not visible: it has no size")
    x, y = sum(areas[0][0::2]) / 4, sum(areas[0][1::2]) / 4
    over = await _call(browser, handle, scripts.COVERED, x, y)
    if over:
        raise Refused(f"element [{name}] is covered by {over}")
    return x, y


def _area(quad: list[float]) -> float:
    width = max(quad[0::2]) - min(quad[0::2])
    height = max(quad[1::2]) - min(quad[1::2])
    return width * height


async def focus(browser: Browser, name: str) -> None:
    """Give an element the focus."""
    from playwright.async_api import Error

    handle = await _object(browser, name)
    try:
        await browser.tab.session.send("DOM.focus", {"objectId": handle})
    except Error as error:
        raise Refused(f"element [{name}] can't have the focus") from error


async def fill(browser: Browser, name: str, text: str) -> None:
    """Replace the text of a field."""
    handle = await _object(browser, name)
    said = await _call(browser, handle, scripts.FILL, text)
    if said == "type":
        if text:
            await browser.tab.page.keyboard.insert_text(text)
        else:
            await browser.tab.page.keyboard.press("Delete")
    elif said != "done":
        raise Refused(f"element [{name}] can't be filled: {said}")


async def select(browser: Browser, name: str, options: list[str]) -> None:
    """Choose options of a drop-down field."""
    said = await _call(browser, await _object(browser, name), scripts.SELECT, options)
    if said != "done":
        raise Refused(f"element [{name}]: {said}")


async def check(browser: Browser, name: str, *, wanted: bool) -> bool:
    """Return whether a box has to be clicked to be as wanted."""
    state = await _call(browser, await _object(browser, name), scripts.CHECKED)
    if state is None:
        raise Refused(f"element [{name}] is no box that can be ticked")
    return bool(state) != wanted


async def upload(browser: Browser, name: str | None, files: list[str]) -> None:
    """Hand files to a file field, or to the file dialog that the page has opened."""
    from playwright.async_api import Error

    paths = [(FILES / file).resolve() for file in files]
    for path in paths:
        if not path.is_relative_to(FILES) or not path.is_file():
            raise Refused(f"there is no file {path.name!r} in {FILES}")
    tab = browser.tab
    chooser, tab.chooser = tab.chooser, None
    if name is None and chooser is None:
        raise Refused("the page asks for no file; click its upload button first")
    field: dict[str, Any] = {"backendNodeId": chooser}
    if name is not None:
        field = {"objectId": await _object(browser, name)}
    files = [str(path) for path in paths]
    try:
        await tab.session.send("DOM.setFileInputFiles", {"files": files, **field})
    except Error as error:
        raise Refused("that is no file field") from error
