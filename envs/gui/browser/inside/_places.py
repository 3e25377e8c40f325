"""Positions of the listed elements in the viewport, and which of them are covered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._browser import Browser
    from ._snapshot import Snapshot
    from ._tab import Tab
    from ._tree import Line

__all__ = ["Place", "find_places", "node_at"]

_MOST_TESTED = 200
"""Number of elements that are tested for being covered, in the order of the page."""


@dataclass(slots=True)
class Place:
    """The position of an element."""

    box: list[float]
    """Left, top, width and height in pixels of the view."""
    covered: bool = False
    """Whether a click on its middle would hit something else."""


async def node_at(tab: Tab, x: float, y: float) -> int:
    """Return the node of the DOM that a click at a point of the view hits; 0 if none."""
    from playwright.async_api import Error

    view = (await tab.session.send("Page.getLayoutMetrics"))["cssVisualViewport"]
    return await _hit(tab, x + view["pageX"], y + view["pageY"], Error)


async def _hit(tab: Tab, x: float, y: float, error: type[Exception]) -> int:
    asked: dict[str, Any] = {"x": int(x), "y": int(y), "includeUserAgentShadowDOM": True}
    try:
        answer = await tab.session.send("DOM.getNodeForLocation", asked)
    except error:  # nothing is there
        return 0
    return int(answer["backendNodeId"])


async def find_places(
    browser: Browser, tab: Tab, snapshot: Snapshot, lines: Iterable[Line]
) -> dict[int, Place]:
    """Return the places of the elements in the viewport, by DOM node id."""
    from playwright.async_api import Error

    width, height = browser.settings.width, browser.settings.height
    places: dict[int, Place] = {}
    for line in lines:
        node = snapshot.nodes.get(line.node)
        if line.role == "page" or node is None or node.box is None:
            continue
        x, y, wide, high = node.box
        if x < width and y < height and x + wide > 0 and y + high > 0:
            places[line.node] = Place([round(side, 1) for side in node.box])
    view = (await tab.session.send("Page.getLayoutMetrics"))["cssVisualViewport"]
    tested = list(places)[:_MOST_TESTED]
    middles = [_middle(places[node].box, width, height) for node in tested]
    hits = await asyncio.gather(
        *(_hit(tab, x + view["pageX"], y + view["pageY"], Error) for x, y in middles)
    )
    for number, hit in zip(tested, hits, strict=True):
        places[number].covered = bool(hit) and not _related(snapshot, number, hit)
    return places


def _middle(box: list[float], width: int, height: int) -> tuple[float, float]:
    """Return the middle of the part of a box that is in view."""
    left, top = max(box[0], 0), max(box[1], 0)
    right, bottom = min(box[0] + box[2], width), min(box[1] + box[3], height)
    return (left + right) / 2, (top + bottom) / 2


def _related(snapshot: Snapshot, number: int, hit: int) -> bool:
    """Whether a click that hits one node reaches another: one lies in the other, or labels it."""
    found, node = snapshot.nodes.get(hit), snapshot.nodes.get(number)
    if found is None or node is None:  # the page has changed in the meantime
        return True
    if found.within(number) or node.within(hit):
        return True
    label = found
    while label.tag != "LABEL" and label.parent is not None:
        label = label.parent
    return label.tag == "LABEL" and (
        node.within(label.backend) or label.attributes.get("for") == node.attributes.get("id", "")
    )
