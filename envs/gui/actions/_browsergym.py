"""Actions of BrowserGym, as calls in text: elements by id, coordinates, navigation, chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, get_args

from trajgym.envs.gui._errors import BadAction
from trajgym.envs.gui.actions._call_text import calls_in
from trajgym.envs.gui.actions._keys import held_keys, key_name, keys_of
from trajgym.envs.gui.actions._types import (
    Button,
    Click,
    CloseTab,
    Drag,
    Element,
    Fill,
    Focus,
    FocusTab,
    GiveUp,
    GoBack,
    GoForward,
    GoTo,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    NewTab,
    PressKeys,
    Say,
    Scroll,
    SelectOption,
    SetChecked,
    TypeText,
    UploadFile,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trajgym.envs.gui.actions._call_text import Called
    from trajgym.envs.gui.actions._types import Action, Point, Scale

__all__ = ["parse_browsergym"]

_MAX_WAIT_MS = 60_000


def parse_browsergym(text: str, scale: Scale) -> list[Action]:
    """Return the actions of a text of BrowserGym's high-level calls.

    The text may be in a code fence. Supported are the subsets bid, coord, nav, tab, chat, infeas
    and ``noop``; other calls, and Python that is not a call, are refused and never executed.

    Args:
        text: one call a line.
        scale: from the model's coordinates to the screen, for the subset coord.

    Raises:
        BadAction: no action, an unknown one, or bad arguments.
    """
    actions: list[Action] = []
    for called in calls_in(_unfenced(text)):
        make = _MAKERS.get(called.name)
        if make is None:
            raise BadAction(f"unknown action {called.name!r}; use one of {', '.join(_MAKERS)}")
        actions += make(called, scale)
    return actions


def _unfenced(text: str) -> str:
    parts = text.split("```")
    if len(parts) < 3:
        return text
    first, _, rest = parts[1].partition("\n")
    return rest if first.strip() in {"", "python"} and rest else parts[1]


def _element(bid: Any) -> Element:
    if not isinstance(bid, str | int) or not str(bid).strip():
        raise BadAction(f"{bid!r} is not an element id; use one of the observation, as a string")
    return Element(str(bid).strip())


def _button(said: Any) -> Button:
    if said in get_args(Button):
        return cast("Button", said)
    raise BadAction(f"{said!r} is not a mouse button; use left, middle or right")


def _held(said: Any) -> tuple[str, ...]:
    names = [said] if isinstance(said, str) else list(said or ())
    return held_keys(list(map(str, names)))


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAction(f"{name} must be a number, not {value!r}")
    return float(value)


def _spot(given: dict[str, Any], scale: Scale, x: str = "x", y: str = "y") -> Point:
    return scale.point(_number(given[x], x), _number(given[y], y))


def _strings(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _click(count: int) -> Callable[[Called, Scale], Sequence[Action]]:
    def make(called: Called, scale: Scale) -> Sequence[Action]:
        del scale
        given = called.bind("bid", button="left", modifiers=())
        held = _held(given["modifiers"])
        return [Click(_element(given["bid"]), _button(given["button"]), count, held)]

    return make


def _click_at(count: int) -> Callable[[Called, Scale], Sequence[Action]]:
    def make(called: Called, scale: Scale) -> Sequence[Action]:
        given = called.bind("x", "y", button="left")
        return [Click(_spot(given, scale), _button(given["button"]), count)]

    return make


def _fill(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    given = called.bind("bid", "value", enable_autocomplete_menu=False)
    at, text = _element(given["bid"]), str(given["value"])
    # Suggestion menus open when keys are pressed, not when a value is set.
    return [Fill(at, ""), TypeText(text)] if given["enable_autocomplete_menu"] else [Fill(at, text)]


def _set_checked(*, checked: bool) -> Callable[[Called, Scale], Sequence[Action]]:
    def make(called: Called, scale: Scale) -> Sequence[Action]:
        del scale
        return [SetChecked(_element(called.bind("bid")["bid"]), checked)]

    return make


def _select(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    given = called.bind("bid", "options")
    return [SelectOption(_element(given["bid"]), _strings(given["options"]))]


def _press(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    given = called.bind("bid", "key_comb")
    return [Focus(_element(given["bid"])), PressKeys(keys_of(str(given["key_comb"])))]


def _drag(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    given = called.bind("from_bid", "to_bid")
    return [Drag((_element(given["from_bid"]), _element(given["to_bid"])))]


def _drag_at(called: Called, scale: Scale) -> Sequence[Action]:
    given = called.bind("from_x", "from_y", "to_x", "to_y")
    return [Drag((_spot(given, scale, "from_x", "from_y"), _spot(given, scale, "to_x", "to_y")))]


def _scroll(called: Called, scale: Scale) -> Sequence[Action]:
    given = called.bind("delta_x", "delta_y")
    dx, dy = _number(given["delta_x"], "delta_x"), _number(given["delta_y"], "delta_y")
    return [Scroll(None, *scale.distance(dx, dy))]


def _scroll_at(called: Called, scale: Scale) -> Sequence[Action]:
    given = called.bind("x", "y", "dx", "dy")
    dx, dy = _number(given["dx"], "dx"), _number(given["dy"], "dy")
    return [Scroll(_spot(given, scale), *scale.distance(dx, dy))]


def _mouse(make: Callable[[Button], Action]) -> Callable[[Called, Scale], Sequence[Action]]:
    def moved(called: Called, scale: Scale) -> Sequence[Action]:
        given = called.bind("x", "y", button="left")
        return [Move(_spot(given, scale)), make(_button(given["button"]))]

    return moved


def _upload(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    given = called.bind("bid", "file")
    return [UploadFile(_element(given["bid"]), _strings(given["file"]))]


def _upload_at(called: Called, scale: Scale) -> Sequence[Action]:
    given = called.bind("x", "y", "file")
    return [Click(_spot(given, scale)), UploadFile(None, _strings(given["file"]))]


def _on_element(make: Callable[[Element], Action]) -> Callable[[Called, Scale], Sequence[Action]]:
    return lambda called, _: [make(_element(called.bind("bid")["bid"]))]


def _text(make: Callable[[str], Action], name: str) -> Callable[[Called, Scale], Sequence[Action]]:
    return lambda called, _: [make(str(called.bind(name)[name]))]


def _plain(make: Callable[[], Action]) -> Callable[[Called, Scale], Sequence[Action]]:
    def bare(called: Called, scale: Scale) -> Sequence[Action]:
        del scale
        called.bind()
        return [make()]

    return bare


def _noop(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    ms = _number(called.bind(wait_ms=1000)["wait_ms"], "wait_ms")
    if not 0 <= ms <= _MAX_WAIT_MS:
        raise BadAction(f"wait_ms must be between 0 and {_MAX_WAIT_MS}")
    return [Wait(ms / 1000)]


def _tab(called: Called, scale: Scale) -> Sequence[Action]:
    del scale
    return [FocusTab(int(_number(called.bind("index")["index"], "index")))]


_MAKERS: dict[str, Callable[[Called, Scale], Sequence[Action]]] = {
    "noop": _noop,
    "fill": _fill,
    "check": _set_checked(checked=True),
    "uncheck": _set_checked(checked=False),
    "select_option": _select,
    "click": _click(1),
    "dblclick": _click(2),
    "hover": _on_element(Move),
    "press": _press,
    "focus": _on_element(Focus),
    "clear": _on_element(lambda at: Fill(at, "")),
    "drag_and_drop": _drag,
    "scroll": _scroll,
    "upload_file": _upload,
    "scroll_at": _scroll_at,
    "mouse_move": lambda called, scale: [Move(_spot(called.bind("x", "y"), scale))],
    "mouse_down": _mouse(MouseDown),
    "mouse_up": _mouse(MouseUp),
    "mouse_click": _click_at(1),
    "mouse_dblclick": _click_at(2),
    "mouse_drag_and_drop": _drag_at,
    "mouse_upload_file": _upload_at,
    "keyboard_press": _text(lambda keys: PressKeys(keys_of(keys)), "key"),
    "keyboard_down": _text(lambda key: KeyDown(key_name(key)), "key"),
    "keyboard_up": _text(lambda key: KeyUp(key_name(key)), "key"),
    "keyboard_type": _text(TypeText, "text"),
    "keyboard_insert_text": _text(TypeText, "text"),
    "goto": _text(GoTo, "url"),
    "go_back": _plain(GoBack),
    "go_forward": _plain(GoForward),
    "new_tab": _plain(NewTab),
    "tab_close": _plain(CloseTab),
    "tab_focus": _tab,
    "send_msg_to_user": _text(Say, "text"),
    "report_infeasible": _text(GiveUp, "reason"),
}
