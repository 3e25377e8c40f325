"""Text actions of UI-TARS (desktop and browser)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trajgym.envs.gui._errors import BadAction
from trajgym.envs.gui.actions._call_text import calls_in
from trajgym.envs.gui.actions._keys import keys_of
from trajgym.envs.gui.actions._types import (
    NOTCH,
    Click,
    Drag,
    Finish,
    GiveUp,
    KeyDown,
    KeyUp,
    Move,
    PressKeys,
    Scroll,
    TypeText,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs.gui.actions._call_text import Called
    from trajgym.envs.gui.actions._types import Action, Point, Scale

__all__ = ["parse_ui_tars"]

_WAIT_SECONDS = 5.0
_SCROLL_NOTCHES = 5
_SIGNS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ACTION = re.compile(r"^\s*Action:[ \t]*", re.MULTILINE)


def parse_ui_tars(text: str, scale: Scale) -> list[Action]:
    r"""Return the actions of a message of UI-TARS.

    Text before ``Action:`` is the thought. Points may be ``(x,y)``, a box ``(x1,y1,x2,y2)``
    (its centre) or in ``<point>`` or ``<|box_start|>`` marks, under the names ``start_box``,
    ``point`` and so on. A ``\n`` at the end of what is typed presses Enter.

    Args:
        text: the message.
        scale: from the model's coordinates to the screen: version 1 uses thousandths
            (``shown`` is 1000 x 1000), version 1.5 in pixels of the picture.

    Raises:
        BadAction: there is no action, the action is unknown (as those of mobile devices are), or
            its arguments are invalid.
    """
    said = _ACTION.split(text)
    if len(said) < 2:
        raise BadAction("there is no 'Action:' line; write one, like Action: click(point='(3,4)')")
    actions: list[Action] = []
    for called in calls_in(said[-1]):
        make = _MAKERS.get(called.name)
        if make is None:
            raise BadAction(f"unknown action {called.name!r}; use one of {', '.join(_MAKERS)}")
        actions += make(called, scale)
    return actions


def _point(value: Any, scale: Scale) -> Point:
    numbers = [float(number) for number in _NUMBER.findall(str(value))]
    if len(numbers) == 4:
        left, top, right, bottom = numbers
        numbers = [(left + right) / 2, (top + bottom) / 2]
    if len(numbers) != 2:
        raise BadAction(f"{value!r} is not a point; write (x,y)")
    return scale.point(*numbers)


def _at(called: Called, scale: Scale, *others: str) -> tuple[Point, dict[str, Any]]:
    """Return the point of a call, under any of its names, and the other arguments."""
    name = next((n for n in ("point", "start_point") if n in called.kwargs), "start_box")
    given = called.bind(name, *others)
    return _point(given[name], scale), given


def _click(button: Any, count: int) -> Callable[[Called, Scale], list[Action]]:
    def make(called: Called, scale: Scale) -> list[Action]:
        return [Click(_at(called, scale)[0], button, count)]

    return make


def _drag(called: Called, scale: Scale) -> list[Action]:
    end = "end_point" if "end_point" in called.kwargs else "end_box"
    start, given = _at(called, scale, end)
    return [Drag((start, _point(given[end], scale)))]


def _scroll(called: Called, scale: Scale) -> list[Action]:
    at, given = _at(called, scale, "direction")
    if given["direction"] not in _SIGNS:
        raise BadAction(f"scroll needs a direction of {', '.join(_SIGNS)}")
    sign_x, sign_y = _SIGNS[given["direction"]]
    pixels = _SCROLL_NOTCHES * NOTCH
    return [Scroll(at, sign_x * pixels, sign_y * pixels)]


def _type(called: Called, scale: Scale) -> list[Action]:
    del scale
    return [TypeText(str(called.bind("content")["content"]))]


def _key(make: Callable[[str], Action]) -> Callable[[Called, Scale], list[Action]]:
    def keys(called: Called, scale: Scale) -> list[Action]:
        del scale
        return [make(key) for key in keys_of(str(called.bind("key")["key"]))]

    return keys


def _hotkey(called: Called, scale: Scale) -> list[Action]:
    del scale
    return [PressKeys(keys_of(str(called.bind("key")["key"])))]


def _wait(called: Called, scale: Scale) -> list[Action]:
    del scale
    called.bind()
    return [Wait(_WAIT_SECONDS)]


def _finished(called: Called, scale: Scale) -> list[Action]:
    del scale
    return [Finish(str(called.bind(content="")["content"]))]


def _call_user(called: Called, scale: Scale) -> list[Action]:
    del scale
    called.bind()
    return [GiveUp("asked for the user")]


_MAKERS: dict[str, Callable[[Called, Scale], list[Action]]] = {
    "click": _click("left", 1),
    "left_double": _click("left", 2),
    "right_single": _click("right", 1),
    "hover": lambda called, scale: [Move(_at(called, scale)[0])],
    "drag": _drag,
    "select": _drag,
    "hotkey": _hotkey,
    "press": _key(KeyDown),
    "release": _key(KeyUp),
    "type": _type,
    "scroll": _scroll,
    "wait": _wait,
    "finished": _finished,
    "call_user": _call_user,
}
