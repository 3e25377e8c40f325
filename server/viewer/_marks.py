"""Drawing an agent's actions on the image that it saw."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trajgym.rollout.rendering import open_image
from trajgym.trajectory import tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trajgym.trajectory import Turn

__all__ = ["Area", "Mark", "area_after", "draw_marks", "marks_of"]

Area: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom."""

_RED = (230, 30, 30)
_POINTED = ("coordinate", "at", "point", "position")
_AREAS = ("area", "region")
_BEGUN = ("start_coordinate", "start", "from")
_TEXTS = ("text", "keys", "key", "content")


class Mark(NamedTuple):
    """An action: its points in screen pixels (none for typing), a label, and the area it shows."""

    points: tuple[tuple[float, float], ...]
    label: str
    area: Area | None = None


def marks_of(turn: Turn) -> tuple[list[Mark], tuple[int, int] | None]:
    """Return the actions of a turn, and the size of the screen that their points refer to.

    Environments with a screen record them as signals: ``actions``, in screen pixels, and
    ``screen``, its width and height. Without these signals the arguments of the tool calls are
    used (``x`` and ``y``, ``coordinate``, ``path``, ...), in pixels of the image; the size is then
    None.
    """
    noted = turn.signals.get("actions")
    screen = turn.signals.get("screen")
    if isinstance(noted, list):
        size = (int(screen[0]), int(screen[1])) if isinstance(screen, list) else None
        return [m for action in noted if (m := _mark(action)) is not None], size
    return [m for action in _asked(turn) if (m := _mark(action)) is not None], None


def area_after(turn: Turn) -> Area | None:
    """Return the area of the screen that the newest image after a turn shows; None if all of it.

    After a zoom, the image shows a part of the screen, while later points refer to all of it.
    """
    noted = turn.signals.get("actions")
    actions = noted if isinstance(noted, list) else []
    areas = [_area(a) for a in actions if isinstance(a, dict) and a.get("do") == "zoom"]
    return areas[-1] if areas else None


def _asked(turn: Turn) -> Iterator[dict[str, Any]]:
    for call in tool_calls_of(turn.message):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            continue
        if not isinstance(arguments, dict):
            continue
        inner = arguments.get("actions", [arguments.get("action")])
        actions = [a for a in inner if isinstance(a, dict)] if isinstance(inner, list) else []
        for action in actions or [arguments]:
            yield {"do": action.get("action") or call["function"]["name"], **action}


def _mark(action: Any) -> Mark | None:
    if not isinstance(action, dict):
        return None
    word = str(action.get("do") or action.get("type") or "")
    points = tuple(_points(action))
    texts = (action.get(name) for name in _TEXTS)
    said = next((t for t in texts if t), "")
    said = "+".join(map(str, said)) if isinstance(said, list) else str(said)
    where = " to ".join(f"{x:g},{y:g}" for x, y in points[:1] + points[1:][-1:])
    area = _area(action)
    if area is not None:
        where = "{:g},{:g} to {:g},{:g}".format(*area)
    what = repr(said[:60]) if said else where
    return Mark(points, f"{word} {what}".strip(), area)


def _area(action: Mapping[str, Any]) -> Area | None:
    value = next((action[name] for name in _AREAS if name in action), None)
    if not isinstance(value, list) or len(value) != 4:
        return None
    first, second = _point(value[:2]), _point(value[2:])
    if first is None or second is None or first[0] >= second[0] or first[1] >= second[1]:
        return None
    return (*first, *second)


def _points(action: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    path = action.get("path")
    if isinstance(path, list):
        yield from (p for item in path if (p := _point(item)) is not None)
        return
    for name in (*_BEGUN, *_POINTED):
        if (found := _point(action.get(name))) is not None:
            yield found
    if (found := _point(action)) is not None:
        yield found


def _point(value: Any) -> tuple[float, float] | None:
    if isinstance(value, dict):
        value = [value.get("x"), value.get("y")]
    if not isinstance(value, list) or len(value) != 2:
        return None
    numbers = [v for v in value if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return (float(numbers[0]), float(numbers[1])) if len(numbers) == 2 else None


def draw_marks(
    data: bytes,
    marks: Sequence[Mark],
    screen: tuple[int, int] | None,
    area: Area | None = None,
) -> bytes:
    """Return an image with marks drawn on it, as JPEG if it was JPEG, else as PNG.

    Args:
        data: the encoded image.
        marks: each is drawn as a ring at its last point, a line through its points, a frame around
            its area, and its label. What is outside the image is left out, except for the label.
        screen: size that the points refer to; the image's own size if None.
        area: the part of the screen that the image shows; the whole screen if None.

    Raises:
        InvalidInput: the bytes are not an image.
        MissingExtra: Pillow is not installed.
    """
    image = open_image(data)
    from PIL import ImageDraw, ImageFont

    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    left, top, right, bottom = area or (0.0, 0.0, *(screen or image.size))
    wide, high = image.width / (right - left), image.height / (bottom - top)

    def at(x: float, y: float) -> tuple[float, float]:
        return (x - left) * wide, (y - top) * high

    for number, mark in enumerate(marks):
        if mark.area is not None:
            pen.rectangle([at(*mark.area[:2]), at(*mark.area[2:])], outline=_RED, width=2)
        points = [at(x, y) for x, y in mark.points]
        if len(points) > 1:
            pen.line(points, fill=_RED, width=2)
        for x, y in points[-1:]:
            pen.ellipse([x - 10, y - 10, x + 10, y + 10], outline="white", width=4)
            pen.ellipse([x - 9, y - 9, x + 9, y + 9], outline=_RED, width=2)
            pen.ellipse([x - 2, y - 2, x + 2, y + 2], fill=_RED)
        place = (4, 4 + 18 * number)
        box = pen.textbbox(place, mark.label, font=font)
        pen.rectangle([box[0] - 3, box[1] - 2, box[2] + 3, box[3] + 2], fill=_RED)
        pen.text(place, mark.label, fill="white", font=font)
    out = io.BytesIO()
    if data.startswith(b"\xff\xd8"):
        image.save(out, "JPEG", quality=90)
    else:
        image.save(out, "PNG")
    return out.getvalue()
