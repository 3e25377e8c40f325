"""Calls of pyautogui's functions as text, which is parsed and never executed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trajgym.envs.gui._errors import BadAction
from trajgym.envs.gui.actions._call_text import calls_in
from trajgym.envs.gui.actions._keys import chord, key_name
from trajgym.envs.gui.actions._types import (
    NOTCH,
    Click,
    CursorPosition,
    Drag,
    Finish,
    GiveUp,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    PressKeys,
    ReadClipboard,
    Screenshot,
    Scroll,
    SetClipboard,
    TypeText,
    Wait,
    Zoom,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trajgym.envs.gui.actions._call_text import Called
    from trajgym.envs.gui.actions._types import Action, Button, Scale

__all__ = ["parse_pyautogui"]

_MODULES = ("pyautogui", "pyperclip", "time")
_FENCE = re.compile(r"```(?:python)?[ \t]*\n(.*?)```", re.DOTALL)
_WAIT_SECONDS = 2.0
_MAX_SECONDS = 60.0
_MOST_PRESSES = 100
_BUTTONS: dict[str, Button] = {
    "left": "left",
    "middle": "middle",
    "right": "right",
    "primary": "left",
    "secondary": "right",
}


def parse_pyautogui(text: str, scale: Scale, pointer: Point = Point(0, 0)) -> list[Action]:  # noqa: B008 - immutable
    """Return the actions of a message with calls of pyautogui's functions.

    The last fenced block counts, or the whole message if there is none. ``time.sleep``,
    ``pyperclip.copy`` and ``pyperclip.paste`` are understood as well; imports of these modules are
    skipped. ``WAIT``, ``DONE`` and ``FAIL`` alone are OSWorld's: wait, finish, and give up.
    Durations and intervals are accepted and ignored.

    Args:
        text: the message.
        scale: from the model's coordinates to the screen.
        pointer: the position of the pointer, in pixels of the screen, for relative movements.

    Raises:
        BadAction: it is not a sequence of calls with literals, a function or a key is unknown, or
            a point is outside the picture.
    """
    blocks = _FENCE.findall(text)
    code = (blocks[-1] if blocks else text).strip()
    if code in _WORDS:
        return [_WORDS[code]]
    reader = _Reader(scale, pointer)
    actions = [action for called in calls_in(code, _MODULES) for action in reader.read(called)]
    if not actions:
        raise BadAction("there is no action; write a call like pyautogui.click(10, 20)")
    return actions


_WORDS: dict[str, Action] = {"WAIT": Wait(_WAIT_SECONDS), "DONE": Finish(), "FAIL": GiveUp()}


class _Reader:
    """Reads calls in order, and follows the pointer."""

    def __init__(self, scale: Scale, pointer: Point) -> None:
        self._scale, self._pointer = scale, pointer

    def read(self, called: Called) -> list[Action]:
        module, _, name = called.name.partition(".")
        if module == "pyautogui":
            make = _MAKERS.get(name)
            if make is not None:
                return make(self, called)
        elif called.name == "time.sleep":
            return self.sleep(called)
        elif called.name == "pyperclip.copy":
            return [SetClipboard(str(called.bind("text")["text"]))]
        elif called.name == "pyperclip.paste":
            called.bind()
            return [ReadClipboard()]
        known = ", ".join(f"pyautogui.{one}" for one in _MAKERS)
        raise BadAction(f"unknown function {called.name!r}; use one of {known}")

    # The pointer ----------------------------------------------------------------------------

    def _place(self, x: Any, y: Any) -> Point | None:
        """Return a point that may be given as ``x=(10, 20)``, or left out wholly or in part."""
        if isinstance(x, list | tuple) and y is None:
            if len(x) != 2:
                raise BadAction(f"{x!r} is not a point; write x and y")
            x, y = x
        if x is None and y is None:
            return None
        here = self._scale.shown_point(self._pointer)
        at = self._scale.point(
            _number(here[0] if x is None else x, "x"), _number(here[1] if y is None else y, "y")
        )
        self._pointer = at
        return at

    def _beside(self, x: Any, y: Any) -> Point:
        """Return the point at a distance from the pointer."""
        dx, dy = self._scale.distance(
            _number(0 if x is None else x, "x"), _number(0 if y is None else y, "y")
        )
        screen = self._scale.screen
        self._pointer = Point(
            min(max(self._pointer.x + dx, 0), screen.width - 1),
            min(max(self._pointer.y + dy, 0), screen.height - 1),
        )
        return self._pointer

    def click(self, called: Called, button: Button | None = None, count: int = 0) -> list[Action]:
        if button is None:
            given = called.bind(x=None, y=None, clicks=1, interval=0, button="left", **_REST)
            button, count = _button(given), _count(given["clicks"], "clicks", 5)
        elif count == 1:  # middleClick and the like take no number of clicks
            given = called.bind(x=None, y=None, interval=0, **_REST)
        else:
            given = called.bind(x=None, y=None, interval=0, button="left", **_REST)
            button = _button(given)
        at = self._place(given["x"], given["y"])
        return [Click(at, button, part) for part in _clicks(count)]

    def move_to(self, called: Called) -> list[Action]:
        given = called.bind(x=None, y=None, **_REST)
        at = self._place(given["x"], given["y"])
        return [Move(self._pointer if at is None else at)]

    def move(self, called: Called) -> list[Action]:
        given = called.bind(xOffset=None, yOffset=None, **_REST)
        return [Move(self._beside(given["xOffset"], given["yOffset"]))]

    def drag_to(self, called: Called) -> list[Action]:
        given = called.bind(x=None, y=None, **_DRAG)
        start = self._pointer
        end = self._place(given["x"], given["y"]) or start
        return [Drag((start, end), _button(given))]

    def drag(self, called: Called) -> list[Action]:
        given = called.bind(xOffset=None, yOffset=None, **_DRAG)
        start = self._pointer
        return [Drag((start, self._beside(given["xOffset"], given["yOffset"])), _button(given))]

    def button(self, called: Called, make: Callable[[Button], Action]) -> list[Action]:
        given = called.bind(x=None, y=None, button="left", **_REST)
        at = self._place(given["x"], given["y"])
        return [*([] if at is None else [Move(at)]), make(_button(given))]

    def scroll(self, called: Called, *, across: bool = False) -> list[Action]:
        given = called.bind("clicks", x=None, y=None, **_COMMON)
        pixels = round(_number(given["clicks"], "clicks") * NOTCH)
        at = self._place(given["x"], given["y"])
        return [Scroll(at, pixels, 0) if across else Scroll(at, 0, -pixels)]

    # The keyboard and the rest --------------------------------------------------------------

    def write(self, called: Called) -> list[Action]:
        given = called.bind("message", interval=0, **_COMMON)
        said = given["message"]
        if isinstance(said, list | tuple):
            return [PressKeys((key_name(str(key)),)) for key in said]
        return [TypeText(str(said))]

    def press(self, called: Called) -> list[Action]:
        given = called.bind("keys", presses=1, interval=0, **_COMMON)
        keys = _names(given["keys"])
        return [
            PressKeys((key_name(key),))
            for _ in range(_count(given["presses"], "presses", _MOST_PRESSES))
            for key in keys
        ]

    def hotkey(self, called: Called) -> list[Action]:
        if extra := set(called.kwargs) - {"interval", *_COMMON}:
            raise BadAction(f"hotkey can't take {sorted(extra)[0]!r} here")
        return [PressKeys(chord(_names(called.args)))]

    def key(self, called: Called, make: Callable[[str], Action]) -> list[Action]:
        return [make(key_name(str(called.bind("key", **_COMMON)["key"])))]

    def sleep(self, called: Called) -> list[Action]:
        seconds = _number(called.bind("seconds")["seconds"], "seconds")
        if not 0 <= seconds <= _MAX_SECONDS:
            raise BadAction(f"seconds must be between 0 and {_MAX_SECONDS:g}")
        return [Wait(seconds)]

    def screenshot(self, called: Called) -> list[Action]:
        region = called.bind(imageFilename=None, region=None)["region"]
        if region is None:
            return [Screenshot()]
        if not isinstance(region, list | tuple) or len(region) != 4:
            raise BadAction("region needs left, top, width and height")
        left, top, width, height = (_number(part, "region") for part in region)
        return [Zoom(self._scale.area(left, top, left + width, top + height))]

    def position(self, called: Called) -> list[Action]:
        called.bind(x=None, y=None)
        return [CursorPosition()]


_COMMON: dict[str, Any] = {"logScreenshot": None, "_pause": True}
"""Arguments of every function, which change nothing here."""
_REST: dict[str, Any] = {"duration": 0, "tween": None, **_COMMON}
"""The same for functions that move the pointer."""
_DRAG: dict[str, Any] = {
    "duration": 0,
    "tween": None,
    "button": "left",
    **_COMMON,
    "mouseDownUp": True,
}


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAction(f"{name} must be a number, not {value!r}")
    return float(value)


def _count(value: Any, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadAction(f"{name} must be a whole number from 1 to {most}")
    return value


def _clicks(count: int) -> list[int]:
    """Return the counts of the clicks that give this number of clicks: three at most at once."""
    return [3] * (count // 3) + [count % 3] * (count % 3 > 0)


def _button(given: dict[str, Any]) -> Button:
    found = _BUTTONS.get(str(given["button"]).lower())
    if found is None:
        raise BadAction(f"there is no button {given['button']!r}; use {', '.join(_BUTTONS)}")
    return found


def _names(given: Any) -> list[str]:
    named: Iterable[Any] = [given] if isinstance(given, str) else given
    flat = [key for one in named for key in (one if isinstance(one, list | tuple) else [one])]
    if not flat or not all(isinstance(key, str) for key in flat):
        raise BadAction("name keys as texts, such as 'ctrl', 'c'")
    return flat


_MAKERS: dict[str, Callable[[_Reader, Called], list[Action]]] = {
    "click": _Reader.click,
    "leftClick": lambda reader, called: reader.click(called, "left", 1),
    "rightClick": lambda reader, called: reader.click(called, "right", 1),
    "middleClick": lambda reader, called: reader.click(called, "middle", 1),
    "doubleClick": lambda reader, called: reader.click(called, "left", 2),
    "tripleClick": lambda reader, called: reader.click(called, "left", 3),
    "moveTo": _Reader.move_to,
    "moveRel": _Reader.move,
    "move": _Reader.move,
    "dragTo": _Reader.drag_to,
    "dragRel": _Reader.drag,
    "drag": _Reader.drag,
    "mouseDown": lambda reader, called: reader.button(called, MouseDown),
    "mouseUp": lambda reader, called: reader.button(called, MouseUp),
    "scroll": _Reader.scroll,
    "vscroll": _Reader.scroll,
    "hscroll": lambda reader, called: reader.scroll(called, across=True),
    "write": _Reader.write,
    "typewrite": _Reader.write,
    "press": _Reader.press,
    "hotkey": _Reader.hotkey,
    "shortcut": _Reader.hotkey,
    "keyDown": lambda reader, called: reader.key(called, KeyDown),
    "keyUp": lambda reader, called: reader.key(called, KeyUp),
    "sleep": _Reader.sleep,
    "screenshot": _Reader.screenshot,
    "position": _Reader.position,
}
