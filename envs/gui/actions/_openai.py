"""Actions of OpenAI's computer use, in the format of its responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trajgym.envs.gui._errors import BadAction
from trajgym.envs.gui.actions._keys import chord, held_keys
from trajgym.envs.gui.actions._types import (
    Click,
    Drag,
    Move,
    PressKeys,
    Screenshot,
    Scroll,
    TypeText,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.gui.actions._types import Action, Scale

__all__ = ["OpenAIAction", "openai_action", "parse_openai"]

_WAIT_SECONDS = 2.0
"""Duration of `wait`, which has no argument for it."""


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Spot(_Action):
    x: float
    y: float
    keys: list[str] | None = None


class ClickAction(_Spot):
    """Click at a point."""

    type: Literal["click"]
    button: Literal["left", "right", "wheel", "back", "forward"] = "left"


class DoubleClickAction(_Spot):
    """Click twice at a point."""

    type: Literal["double_click"]


class MoveAction(_Spot):
    """Move the pointer."""

    type: Literal["move"]


class ScrollAction(_Spot):
    """Scroll by pixels at a point; positive is down and to the right."""

    type: Literal["scroll"]
    scroll_x: float = 0
    scroll_y: float = 0


class PathPoint(_Action):
    """A point of a drag."""

    x: float
    y: float


class DragAction(_Action):
    """Drag along a path with the left button."""

    type: Literal["drag"]
    path: list[PathPoint] = Field(min_length=2)
    keys: list[str] | None = None


class KeypressAction(_Action):
    """Press keys together."""

    type: Literal["keypress"]
    keys: list[str] = Field(min_length=1)


class TypeAction(_Action):
    """Type text."""

    type: Literal["type"]
    text: str


class WaitAction(_Action):
    """Wait two seconds."""

    type: Literal["wait"]


class ScreenshotAction(_Action):
    """Look at the screen."""

    type: Literal["screenshot"]


OpenAIAction: TypeAlias = Annotated[
    ClickAction
    | DoubleClickAction
    | MoveAction
    | ScrollAction
    | DragAction
    | KeypressAction
    | TypeAction
    | WaitAction
    | ScreenshotAction,
    Field(discriminator="type"),
]
"""One action of OpenAI's computer use, by its ``type``."""

_adapter: TypeAdapter[OpenAIAction] = TypeAdapter(OpenAIAction)


def parse_openai(call: Mapping[str, Any], scale: Scale) -> list[Action]:
    """Return the actions of a computer call.

    Args:
        call: one action (``{"type": "click", ...}``), or a call that carries ``action`` or a
            batch in ``actions``.
        scale: from the model's coordinates to the screen.

    Raises:
        BadAction: unknown type, missing or ill-typed fields, a point outside the screen, or an
            unknown key.
    """
    given: Sequence[Any] = call.get("actions") or [call.get("action") or call]
    actions = []
    for item in given:
        try:
            parsed = _adapter.validate_python(item)
        except ValidationError as error:
            where = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'action'}: {e['msg']}"
                for e in error.errors(include_url=False, include_context=False, include_input=False)
            )
            raise BadAction(f"not an action: {where}") from error
        actions.append(openai_action(parsed, scale))
    return actions


def openai_action(action: OpenAIAction, scale: Scale) -> Action:
    """Return one validated action as an action of this library."""
    match action:
        case ClickAction():
            at = scale.point(action.x, action.y)
            button = "middle" if action.button == "wheel" else action.button
            return Click(at, button, keys=held_keys(action.keys or ()))
        case DoubleClickAction():
            return Click(
                scale.point(action.x, action.y), count=2, keys=held_keys(action.keys or ())
            )
        case MoveAction():
            return Move(scale.point(action.x, action.y), keys=held_keys(action.keys or ()))
        case ScrollAction():
            dx, dy = scale.distance(action.scroll_x, action.scroll_y)
            return Scroll(
                scale.point(action.x, action.y), dx, dy, keys=held_keys(action.keys or ())
            )
        case DragAction():
            path = tuple(scale.point(point.x, point.y) for point in action.path)
            return Drag(path, keys=held_keys(action.keys or ()))
        case KeypressAction():
            return PressKeys(chord(action.keys))
        case TypeAction():
            return TypeText(action.text)
        case WaitAction():
            return Wait(_WAIT_SECONDS)
        case ScreenshotAction():
            return Screenshot()
