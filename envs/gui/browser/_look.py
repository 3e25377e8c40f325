"""An observation of a browser."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs import Image

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.gui._picture import PictureForm

__all__ = ["BrowserElement", "BrowserEvent", "BrowserLook", "look_of"]


class BrowserEvent(NamedTuple):
    """An event in the browser since the last look."""

    kind: str
    """``dialog``, ``tab``, ``download``, ``chooser``, ``navigation``, ``crash``, ``hang``, or
    ``console`` and ``error`` of a page."""
    text: str


class BrowserElement(NamedTuple):
    """An element in the viewport."""

    id: str
    role: str
    name: str
    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels of the screen."""
    clickable: bool
    """Whether it reacts to clicks, judging by its role, its listeners, or its cursor."""
    covered: bool
    """Whether a click on its middle would hit something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLook:
    """An observation of the browser, and the results of the preceding actions.

    Attributes:
        picture: screenshot of the page, if one was requested and no dialog is open.
        tree: the elements, one per line, with their ids; limited in length.
        elements: the listed elements in the viewport, with their positions, if requested.
        html: the page as HTML without scripts, styles and most attributes, if requested; elements
            have their ids as the attribute ``bid``.
        url: URL of the active tab.
        title: title of its page.
        tabs: addresses of all tabs.
        active: index of the active tab.
        focused: id of the focused element, or empty.
        dialog: kind and text of the open dialog, or None.
        events: events since the last look; limited in number and length.
        dropped: number of events that were dropped.
        pointer: position of the pointer, in pixels of the screen.
        unmatched: requests since the last look that the recording has no response to, as method
            and address; at most 20. Only if traffic is replayed.
        unmatched_count: how many there were.
        digest: hash of the address and the elements without their ids; equal for equal pages.
        task: state of the task: the states of the sites, or the episode of MiniWoB++.
        errors: one for each action that was tried; empty if it succeeded.
        found: whether the element existed, for each action that named one.
        mark: changes with the observation.
    """

    picture: Image | None
    tree: str
    elements: tuple[BrowserElement, ...]
    html: str
    url: str
    title: str
    tabs: tuple[str, ...]
    active: int
    focused: str
    dialog: tuple[str, str] | None
    events: tuple[BrowserEvent, ...]
    dropped: int
    pointer: tuple[float, float]
    digest: str
    task: Mapping[str, Any]
    errors: tuple[str, ...] = ()
    found: tuple[bool, ...] = ()
    unmatched: tuple[str, ...] = ()
    unmatched_count: int = 0
    mark: str = field(default="", compare=False)

    @property
    def boxes(self) -> dict[str, tuple[float, float, float, float]]:
        """Boxes of the clickable elements that nothing covers, by id."""
        return {one.id: one.box for one in self.elements if one.clickable and not one.covered}


def _element(found: Mapping[str, Any]) -> BrowserElement:
    x, y, width, height = found["box"]
    return BrowserElement(**{**found, "box": (x, y, width, height)})


def look_of(answer: Mapping[str, Any], picture: PictureForm | None) -> BrowserLook:
    """Return what a driver's answer shows.

    Args:
        answer: the answer.
        picture: the form of the screenshot that was requested.
    """
    seen = answer["look"]
    image, mark = None, hashlib.sha256(f"{seen.get('digest')}{seen['url']}".encode())
    if picture is not None and seen.get("screenshot"):
        data = base64.b64decode(seen["screenshot"])
        mark.update(data)
        image = Image(data, f"image/{picture.form}")
    dialog = seen.get("dialog")
    results = answer.get("results", ())
    x, y = seen["pointer"]
    return BrowserLook(
        picture=image,
        tree=seen.get("tree", ""),
        elements=tuple(_element(one) for one in seen.get("elements") or ()),
        html=seen.get("html", ""),
        url=seen["url"],
        title=seen.get("title", ""),
        tabs=tuple(seen["tabs"]),
        active=seen["active"],
        focused=seen.get("focused", ""),
        dialog=(dialog["type"], dialog["message"]) if dialog else None,
        events=tuple(BrowserEvent(e["kind"], e["text"]) for e in seen["events"]),
        dropped=seen["dropped"],
        pointer=(x, y),
        digest=seen.get("digest") or "",
        task=answer.get("task") or {},
        errors=tuple(result.get("error", "") for result in results),
        found=tuple(result["found"] for result in results if "found" in result),
        unmatched=tuple((seen.get("unmatched") or {}).get("requests", ())),
        unmatched_count=int((seen.get("unmatched") or {}).get("count", 0)),
        mark=mark.hexdigest(),
    )
