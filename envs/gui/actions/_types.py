"""Actions on a screen: one model for all action spaces.

Parsers such as :func:`parse_openai` build actions from the output of a model; a driver executes
their wire form. Points are pixels of the screen, from its upper left corner; the picture that the
agent sees may be smaller, and :class:`Scale` converts between the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeAlias

from trajgym.envs.gui._errors import BadAction
from trajgym.trajectory import InvalidInput

__all__ = [
    "NOTCH",
    "Action",
    "Button",
    "Click",
    "CloseTab",
    "CursorPosition",
    "Drag",
    "Element",
    "Fill",
    "Finish",
    "Focus",
    "FocusTab",
    "GiveUp",
    "GoBack",
    "GoForward",
    "GoTo",
    "KeyDown",
    "KeyUp",
    "MouseDown",
    "MouseUp",
    "Move",
    "NewTab",
    "Point",
    "PressKeys",
    "ReadClipboard",
    "Say",
    "Scale",
    "Screenshot",
    "Scroll",
    "SelectOption",
    "SetChecked",
    "SetClipboard",
    "Size",
    "Target",
    "TypeText",
    "UploadFile",
    "Wait",
    "Zoom",
    "to_wire",
]

NOTCH = 100
"""Pixels that one notch of a mouse wheel scrolls."""

Button: TypeAlias = Literal["left", "middle", "right", "back", "forward"]


class Point(NamedTuple):
    """A pixel of the screen."""

    x: int
    y: int


class Element(NamedTuple):
    """An element by the id that an observation gave it."""

    id: str


Target: TypeAlias = "Point | Element"


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts between a model's coordinates and the pixels of the screen.

    Args:
        shown: range of the model's coordinates: the size of the picture it sees, or 1000 x 1000
            for models that use thousandths.
        screen: size of the screen.
    """

    shown: Size
    screen: Size

    def __post_init__(self) -> None:
        if min(*self.shown, *self.screen) < 1:
            raise InvalidInput(f"sizes must be positive: {self.shown} shown of {self.screen}")

    def point(self, x: float, y: float) -> Point:
        """Return the pixel of the screen at the model's ``x`` and ``y``.

        Raises:
            BadAction: it is outside the picture.
        """
        width, height = self.shown
        if not (0 <= x <= width and 0 <= y <= height):
            raise BadAction(f"({x:g}, {y:g}) is outside the screen, which is {width} x {height}")
        return Point(
            min(round(x * self.screen.width / width), self.screen.width - 1),
            min(round(y * self.screen.height / height), self.screen.height - 1),
        )

    def area(self, x1: float, y1: float, x2: float, y2: float) -> tuple[int, int, int, int]:
        """Return an area in the model's coordinates in pixels of the screen.

        Raises:
            BadAction: a corner is outside the picture, or the area is empty.
        """
        self.point(x1, y1)
        self.point(x2, y2)
        across, down = self.screen.width / self.shown.width, self.screen.height / self.shown.height
        left, right = round(x1 * across), round(x2 * across)
        top, bottom = round(y1 * down), round(y2 * down)
        if right <= left or bottom <= top:
            raise BadAction(
                f"the area ({x1:g}, {y1:g}, {x2:g}, {y2:g}) is empty: give its upper left and its "
                "lower right corner"
            )
        return left, top, right, bottom

    def shown_point(self, point: Point) -> tuple[int, int]:
        """Return a pixel of the screen in the model's coordinates."""
        return (
            round(point.x * self.shown.width / self.screen.width),
            round(point.y * self.shown.height / self.screen.height),
        )

    def distance(self, dx: float, dy: float) -> tuple[int, int]:
        """Return a distance in the model's coordinates in pixels of the screen."""
        return (
            round(dx * self.screen.width / self.shown.width),
            round(dy * self.screen.height / self.shown.height),
        )


@dataclass(frozen=True, slots=True)
class Click:
    """Press and release a mouse button ``count`` times, at ``at`` or where the pointer is."""

    at: Target | None
    button: Button = "left"
    count: int = 1
    keys: tuple[str, ...] = ()
    """Modifiers that are held during the click."""


@dataclass(frozen=True, slots=True)
class Move:
    """Move the pointer."""

    at: Target
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MouseDown:
    """Press a mouse button and keep it down."""

    button: Button = "left"


@dataclass(frozen=True, slots=True)
class MouseUp:
    """Release a mouse button."""

    button: Button = "left"


@dataclass(frozen=True, slots=True)
class Drag:
    """Press at the first target, move through the others, release at the last."""

    path: tuple[Target, ...]
    button: Button = "left"
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.path) < 2:
            raise BadAction("a drag needs at least two points: its start and its end")


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel at ``at``, by pixels: positive is down and to the right."""

    at: Target | None
    dx: int = 0
    dy: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TypeText:
    """Type text into the focused element; a newline presses Enter."""

    text: str


@dataclass(frozen=True, slots=True)
class PressKeys:
    """Press keys together, the modifiers first, and hold them for ``seconds``."""

    keys: tuple[str, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyDown:
    """Press one key and keep it down."""

    key: str


@dataclass(frozen=True, slots=True)
class KeyUp:
    """Release one key."""

    key: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Screenshot:
    """Only take a screenshot."""


@dataclass(frozen=True, slots=True)
class Zoom:
    """Show a part of the screen in its full resolution, enlarged to the size of the picture.

    Applies to the observation of its turn; of several in a turn, the last one counts.
    """

    area: tuple[int, int, int, int]
    """Left, top, right and bottom in pixels of the screen."""


@dataclass(frozen=True, slots=True)
class ReadClipboard:
    """Ask for the text on the clipboard."""


@dataclass(frozen=True, slots=True)
class SetClipboard:
    """Put text on the clipboard."""

    text: str


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """Ask for the position of the pointer."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Replace the text of a field."""

    at: Element
    text: str


@dataclass(frozen=True, slots=True)
class SelectOption:
    """Choose options of a drop-down field, by value or label."""

    at: Element
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetChecked:
    """Tick a box, or untick it."""

    at: Element
    checked: bool


@dataclass(frozen=True, slots=True)
class Focus:
    """Give an element the focus."""

    at: Element


@dataclass(frozen=True, slots=True)
class UploadFile:
    """Upload files of the sandbox to a file field, or to the open file dialog."""

    at: Element | None
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GoTo:
    """Open an address in this tab."""

    url: str


@dataclass(frozen=True, slots=True)
class GoBack:
    """Go back in this tab's history."""


@dataclass(frozen=True, slots=True)
class GoForward:
    """Go forward in this tab's history."""


@dataclass(frozen=True, slots=True)
class NewTab:
    """Open an empty tab and go to it."""


@dataclass(frozen=True, slots=True)
class CloseTab:
    """Close this tab."""


@dataclass(frozen=True, slots=True)
class FocusTab:
    """Go to a tab, counted from 0."""

    index: int


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to the user; in tasks that ask a question, the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Declare that the task can't be done, and end."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the attempt, with an answer if the task asks for one."""

    answer: str = ""


Action: TypeAlias = (
    Click
    | Move
    | MouseDown
    | MouseUp
    | Drag
    | Scroll
    | TypeText
    | PressKeys
    | KeyDown
    | KeyUp
    | Wait
    | Screenshot
    | Zoom
    | CursorPosition
    | ReadClipboard
    | SetClipboard
    | Fill
    | SelectOption
    | SetChecked
    | Focus
    | UploadFile
    | GoTo
    | GoBack
    | GoForward
    | NewTab
    | CloseTab
    | FocusTab
    | Say
    | GiveUp
    | Finish
)


def to_wire(action: Action) -> dict[str, Any]:
    """Return an action as JSON values, for drivers and signals.

    ``{"do": "click", "at": [x, y] or "id" or None, ...}``: the class's name in snake case, then
    its fields; points are lists, elements their ids.
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(action).__name__).lower()
    return {"do": name, **{f.name: _plain(getattr(action, f.name)) for f in fields(action)}}


def _plain(value: Any) -> Any:
    if isinstance(value, Element):
        return value.id
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
