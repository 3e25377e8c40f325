"""The calls that the space ``pyautogui`` accepts have the signatures of the real package."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gui.signatures import RECORDED
from trajgym.envs.gui import BadAction
from trajgym.envs.gui.actions import Point, Scale, Size, parse_pyautogui
from trajgym.envs.gui.actions._pyautogui import _MAKERS

SCALE = Scale(Size(640, 360), Size(1280, 720))
FUNCTIONS: dict[str, list[str]] = json.loads(RECORDED.read_text())["functions"]
VALUES: dict[str, Any] = {
    "x": 10,
    "y": 20,
    "xOffset": 5,
    "yOffset": -5,
    "clicks": 2,
    "interval": 0.1,
    "button": "right",
    "duration": 0.5,
    "tween": None,
    "logScreenshot": False,
    "_pause": False,
    "mouseDownUp": True,
    "message": "text",
    "keys": ["a"],
    "presses": 2,
    "key": "shift",
    "seconds": 0.5,
}
NOT_ACTIONS = {
    *("countdown", "displayMousePosition", "failSafeCheck", "getInfo", "getPointOnLine", "linear"),
    *("isShiftCharacter", "isValidKey", "onScreen", "printInfo", "resolution", "run", "size"),
    *("raisePyAutoGUIImageNotFoundException", "useImageNotFoundException"),
    "hold",  # a context manager; keyDown and keyUp do the same
}
ACTIONS = sorted({*FUNCTIONS} - NOT_ACTIONS)


def parsed(call: str) -> object:
    return parse_pyautogui(f"pyautogui.{call}", SCALE, Point(100, 50))


def test_every_function_that_acts_is_accepted() -> None:
    """A new function of the package has to be added here, or named as one that does not act."""
    # `screenshot` comes from pyscreeze, which pyautogui imports.
    assert {*_MAKERS} == {*ACTIONS, "screenshot"}


@pytest.mark.parametrize("name", [name for name in ACTIONS if FUNCTIONS[name][0] != "*args"])
def test_arguments_are_those_of_the_package(name: str) -> None:
    """All of them, in order or by name; one more, or one of another name, is refused."""
    names = [one.rstrip("!") for one in FUNCTIONS[name]]
    required = [one.rstrip("!") for one in FUNCTIONS[name] if one.endswith("!")]
    values = [repr(VALUES[one]) for one in names]
    whole = parsed(f"{name}({', '.join(values)})")
    assert whole == parsed(f"{name}({', '.join(map('='.join, zip(names, values, strict=True)))})")
    need = ", ".join(f"{one}={VALUES[one]!r}" for one in required)
    for one in set(names) - set(required):
        parsed(f"{name}({need}{', ' if need else ''}{one}={VALUES[one]!r})")
    with pytest.raises(BadAction, match="at most"):
        parsed(f"{name}({', '.join([*values, '1'])})")
    with pytest.raises(BadAction, match="can't take 'other'"):
        parsed(f"{name}({need}{', ' if need else ''}other=1)")
    if required:
        with pytest.raises(BadAction, match="needs"):
            parsed(f"{name}()")


@pytest.mark.parametrize("name", ["hotkey", "shortcut"])
def test_combinations_of_keys_take_any_number(name: str) -> None:
    """``hotkey`` takes keys as arguments or as a list, and an interval."""
    assert parsed(f"{name}('ctrl', 'shift', 'a')") == parsed(f"{name}(['ctrl', 'shift', 'a'])")
    parsed(f"{name}('ctrl', 'c', interval=0.1, logScreenshot=False, _pause=False)")
    with pytest.raises(BadAction, match="can't take 'presses'"):
        parsed(f"{name}('ctrl', 'c', presses=2)")
