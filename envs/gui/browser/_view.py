"""The text and the pictures that the agent gets of a browser."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TypeAlias

from trajgym.envs import Image
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui.actions._types import Size
    from trajgym.envs.gui.browser._look import BrowserLook

__all__ = ["draw_marks", "look_text"]

_PAGE_KINDS = {"console", "error"}
_Box: TypeAlias = tuple[float, float, float, float]
_COLOURS = ("#c62828", "#1565c0", "#2e7d32", "#6a1b9a", "#ad5700", "#00695c")


def look_text(
    look: BrowserLook, *, tree: bool, console: bool, focused: bool, most_events: int = 20
) -> str:
    """Return an observation as text.

    Args:
        look: what was seen.
        tree: whether the elements are listed.
        console: whether console messages and errors of pages are shown.
        focused: whether the element with the focus is named.
        most_events: bound of the events; more are counted.
    """
    if len(look.tabs) > 1:
        tabs = [f"{'*' if i == look.active else ''}{i} {url}" for i, url in enumerate(look.tabs)]
        lines = [f"Tabs: {', '.join(tabs)}"]
    else:
        lines = [f"Page: {look.url}"]
    if look.dialog is not None:
        kind, text = look.dialog
        lines.append(f"A dialog is open ({kind}): {text}")
        lines.append("Press Enter to accept or Escape to dismiss; for a prompt, type the text.")
    if focused and look.focused:
        lines.append(f"Focus: [{look.focused}]")
    shown = [event for event in look.events if console or event.kind not in _PAGE_KINDS]
    lines += [f"{event.kind.capitalize()}: {event.text}" for event in shown[:most_events]]
    more = max(0, len(shown) - most_events)
    if more or (look.dropped and console):
        lines.append(f"[{more + look.dropped} more events left out]")
    if tree and look.tree:
        lines.append(look.tree)
    if look.html:
        lines.append(look.html)
    return "\n".join(lines)


def draw_marks(
    picture: Image, boxes: Mapping[str, tuple[float, float, float, float]], screen: Size
) -> Image:
    """Return the picture with a numbered box around every element (a set of marks).

    Args:
        picture: screenshot of the page.
        boxes: by element id, in pixels of the screen.
        screen: its size; the picture may be smaller.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    try:
        from PIL import Image as Picture
        from PIL import ImageDraw, ImageFont
    except ImportError as error:
        raise MissingExtra("pillow", "gui") from error
    with Picture.open(io.BytesIO(picture.data)) as opened:
        drawn = opened.convert("RGB")
    scale = drawn.width / screen.width
    draw, font = ImageDraw.Draw(drawn), ImageFont.load_default(12)
    areas = {
        name: (x * scale, y * scale, (x + width) * scale, (y + height) * scale)
        for name, (x, y, width, height) in boxes.items()
    }
    taken = list(areas.values())
    for number, (name, area) in enumerate(areas.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        draw.rectangle(area, outline=colour, width=2)
        _, _, wide, high = draw.textbbox((0, 0), name, font=font)
        label = _place(area, (wide + 4, high + 3), drawn.size, taken)
        taken.append(label)
        draw.rectangle(label, fill=colour)
        draw.text((label[0] + 2, label[1]), name, fill="white", font=font)
    buffer = io.BytesIO()
    form = picture.media_type.removeprefix("image/")
    options = {"quality": 80} if form == "jpeg" else {"compress_level": 1}
    drawn.save(buffer, form, **options)
    return Image(buffer.getvalue(), picture.media_type)


def _place(
    area: _Box, size: tuple[float, float], picture: tuple[int, int], taken: Sequence[_Box]
) -> _Box:
    """Return a position beside or above the element at which its label hides no other element."""
    left, top, right, bottom = area
    wide, high = size
    corners = [(left - wide, top), (right, top), (left, top - high), (left, bottom)]
    spots = [(x, y, x + wide, y + high) for x, y in corners]
    inside = [
        spot
        for spot in spots
        if spot[0] >= 0 and spot[1] >= 0 and spot[2] <= picture[0] and spot[3] <= picture[1]
    ]
    free = [s for s in inside if not any(_overlap(s, other) for other in taken)]
    return (free or inside or [(left, top, left + wide, top + high)])[0]


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
