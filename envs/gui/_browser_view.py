"""What the agent reads and sees of a browser."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from trajgym.envs import Image
from trajgym.trajectory import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.gui._actions import Size
    from trajgym.envs.gui._browser import BrowserLook

__all__ = ["draw_marks", "look_text"]

_PAGE_KINDS = {"console", "error"}
_COLOURS = ("#c62828", "#1565c0", "#2e7d32", "#6a1b9a", "#ad5700", "#00695c")


def look_text(
    look: BrowserLook, *, tree: bool, console: bool, focused: bool, most_events: int = 20
) -> str:
    """Return an observation as text.

    Args:
        look: what was seen.
        tree: whether the elements are listed.
        console: whether console messages and errors of pages are told.
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
    told = [event for event in look.events if console or event.kind not in _PAGE_KINDS]
    lines += [f"{event.kind.capitalize()}: {event.text}" for event in told[:most_events]]
    more = len(told) - most_events if len(told) > most_events else 0
    if more or (look.dropped and console):
        lines.append(f"[{more + look.dropped} more events left out]")
    if tree and look.tree:
        lines.append(look.tree)
    return "\n".join(lines)


def draw_marks(
    picture: Image, boxes: Mapping[str, tuple[float, float, float, float]], screen: Size
) -> Image:
    """Return the picture with a numbered box around every element (a set of marks).

    Args:
        picture: of the page.
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
    for number, (name, (x, y, width, height)) in enumerate(boxes.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        left, top = x * scale, y * scale
        right, bottom = (x + width) * scale, (y + height) * scale
        draw.rectangle((left, top, right, bottom), outline=colour, width=2)
        _, _, wide, high = draw.textbbox((0, 0), name, font=font)
        # Above the element where there is room, so that its own text stays readable.
        at = (left, top - high - 3 if top > high + 3 else top)
        draw.rectangle((at[0], at[1], at[0] + wide + 4, at[1] + high + 3), fill=colour)
        draw.text((at[0] + 2, at[1]), name, fill="white", font=font)
    buffer = io.BytesIO()
    form = picture.media_type.removeprefix("image/")
    options = {"quality": 80} if form == "jpeg" else {"compress_level": 1}
    drawn.save(buffer, form, **options)
    return Image(buffer.getvalue(), picture.media_type)
