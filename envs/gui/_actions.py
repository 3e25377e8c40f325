"""What can be done to a screen: one model of actions, whatever space a model speaks.

Parsers (:func:`parse_openai` and its kin) make these from what a model said; a driver carries out
their wire form. Points are pixels of the screen, from its upper left corner; what the agent sees
may be smaller, and :class:`Scale` stands between the two.
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
    "Say",
    "Scale",
    "Screenshot",
    "Scroll",
    "SelectOption",
    "SetChecked",
    "Size",
    "Target",
    "TypeText",
    "UploadFile",
    "Wait",
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
    """Between the coordinates a model speaks and the pixels of the screen.

    Args:
        shown: range of the model's coordinates: the size of the picture it sees, or 1000 x 1000
            for models that speak in thousandths.
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
            BadAction: it lies outside of the picture.
        """
        width, height = self.shown
        if not (0 <= x <= width and 0 <= y <= height):
            raise BadAction(
                f"({x:g}, {y:g}) lies outside of the screen, which is {width} x {height}"
            )
        return Point(
            min(round(x * self.screen.width / width), self.screen.width - 1),
            min(round(y * self.screen.height / height), self.screen.height - 1),
        )

    def shown_point(self, point: Point) -> tuple[int, int]:
        """Return where a pixel of the screen lies in the model's coordinates."""
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
    """Modifiers held meanwhile."""


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
            raise BadAction("a drag needs at least two points: where it begins and where it ends")


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel at ``at``, by pixels: positive is down and to the right."""

    at: Target | None
    dx: int = 0
    dy: int = 0
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TypeText:
    """Type text where the focus is; a newline is the Enter key."""

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
    """Let time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Screenshot:
    """Do nothing: look."""


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """Ask where the pointer is."""


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
    """Hand files of the sandbox to a file field or to the file dialog that is open."""

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
    """Tell the user something; in tasks that ask a question, the answer."""

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
    | CursorPosition
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
