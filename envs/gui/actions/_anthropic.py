"""Actions of Anthropic's computer tool (versions 20241022, 20250124 and 20251124)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from trajgym.envs.gui._errors import BadAction
from trajgym.envs.gui.actions._keys import held_keys, keys_of
from trajgym.envs.gui.actions._types import (
    NOTCH,
    Click,
    CursorPosition,
    Drag,
    MouseDown,
    MouseUp,
    Move,
    PressKeys,
    Screenshot,
    Scroll,
    TypeText,
    Wait,
    Zoom,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trajgym.envs.gui.actions._types import Action, Button, Point, Scale

__all__ = ["AnthropicVerb", "Direction", "parse_anthropic"]

AnthropicVerb: TypeAlias = Literal[
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "triple_click",
    "screenshot",
    "cursor_position",
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
    "zoom",
]
Direction: TypeAlias = Literal["up", "down", "left", "right"]

MAX_SECONDS = 100.0
_SIGNS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_CLICKS: dict[str, tuple[Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: AnthropicVerb
    text: str | None = None
    coordinate: tuple[float, float] | None = None
    start_coordinate: tuple[float, float] | None = None
    scroll_direction: Direction | None = None
    scroll_amount: int | None = None
    duration: float | None = None
    key: str | None = None
    region: tuple[float, float, float, float] | None = None


def parse_anthropic(call: Mapping[str, Any], scale: Scale) -> list[Action]:
    """Return the actions of a call of the computer tool.

    Several key combinations in one ``key``, with spaces between, are several actions.

    Args:
        call: the tool's input: ``action`` and its arguments (``coordinate``, ``text``, ...).
        scale: from the model's coordinates to the screen.

    Raises:
        BadAction: unknown action, missing or ill-typed fields, a point outside the screen, or an
            unknown key.
    """
    try:
        said = _Input.model_validate({k: v for k, v in call.items() if v is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}"
            for e in error.errors(include_url=False, include_context=False, include_input=False)
        )
        raise BadAction(f"not an action: {problems}") from error
    if said.action in _CLICKS:
        button, count = _CLICKS[said.action]
        at = None if said.coordinate is None else scale.point(*said.coordinate)
        return [Click(at, button, count, _held(said))]
    return _OTHERS[said.action](said, scale)


def _key(said: _Input, scale: Scale) -> list[Action]:
    del scale
    return [PressKeys(keys_of(combination)) for combination in _text(said).split()]


def _hold(said: _Input, scale: Scale) -> list[Action]:
    del scale
    return [PressKeys(keys_of(_text(said)), _seconds(said))]


def _drag(said: _Input, scale: Scale) -> list[Action]:
    end = _at(said, scale)
    if said.start_coordinate is None:  # the first version drags from the position of the pointer
        return [MouseDown(), Move(end), MouseUp()]
    return [Drag((scale.point(*said.start_coordinate), end), keys=_held(said))]


def _scroll(said: _Input, scale: Scale) -> list[Action]:
    if said.scroll_direction is None or said.scroll_amount is None or said.scroll_amount < 0:
        raise BadAction("scroll needs scroll_direction and scroll_amount, which is not negative")
    sign_x, sign_y = _SIGNS[said.scroll_direction]
    at = None if said.coordinate is None else scale.point(*said.coordinate)
    pixels = said.scroll_amount * NOTCH
    return [Scroll(at, sign_x * pixels, sign_y * pixels, _held(said))]


def _zoom(said: _Input, scale: Scale) -> list[Action]:
    if said.region is None:
        raise BadAction("zoom needs a region: x1, y1, x2, y2")
    return [Zoom(scale.area(*said.region))]


_OTHERS: dict[str, Callable[[_Input, Scale], list[Action]]] = {
    "key": _key,
    "hold_key": _hold,
    "type": lambda said, _: [TypeText(_text(said))],
    "mouse_move": lambda said, scale: [Move(_at(said, scale))],
    "left_click_drag": _drag,
    "left_mouse_down": lambda *_: [MouseDown()],
    "left_mouse_up": lambda *_: [MouseUp()],
    "scroll": _scroll,
    "wait": lambda said, _: [Wait(_seconds(said))],
    "screenshot": lambda *_: [Screenshot()],
    "cursor_position": lambda *_: [CursorPosition()],
    "zoom": _zoom,
}
assert set(_OTHERS) | set(_CLICKS) == set(get_args(AnthropicVerb))


def _text(said: _Input) -> str:
    if not said.text:
        raise BadAction(f"{said.action} needs text")
    return said.text


def _at(said: _Input, scale: Scale) -> Point:
    if said.coordinate is None:
        raise BadAction(f"{said.action} needs a coordinate")
    return scale.point(*said.coordinate)


def _seconds(said: _Input) -> float:
    if said.duration is None or not 0 <= said.duration <= MAX_SECONDS:
        raise BadAction(f"{said.action} needs a duration of 0 to {MAX_SECONDS:g} seconds")
    return said.duration


def _held(said: _Input) -> tuple[str, ...]:
    """Return the modifiers of a mouse action; both versions of the tool name them differently."""
    named = said.key or said.text
    return held_keys(keys_of(named) if named else ())
