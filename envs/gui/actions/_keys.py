"""Names of keys, and their aliases.

The names are those of the DOM (``Control``, ``ArrowLeft``, ``Enter``, ``a``), which Chromium
accepts unchanged; the names of X11 are aliases.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from trajgym.envs.gui._errors import BadAction

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MODIFIERS", "Keys", "chord", "held_keys", "key_name", "keys_of"]

Keys: TypeAlias = tuple[str, ...]
"""Keys pressed together, modifiers first."""

MODIFIERS = ("Control", "Shift", "Alt", "Meta")

_NAMED = (
    *MODIFIERS,
    *("Enter", "Tab", "Escape", "Backspace", "Delete", "Insert", "Space", "CapsLock"),
    *("Home", "End", "PageUp", "PageDown", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"),
    *("PrintScreen", "ScrollLock", "NumLock", "Pause", "ContextMenu"),
    *(f"F{number}" for number in range(1, 25)),
)
_ALIASES = {
    "ctrl": "Control",
    "controlleft": "Control",
    "controlright": "Control",
    "controll": "Control",
    "controlr": "Control",
    "controlormeta": "Control",
    "shiftleft": "Shift",
    "shiftright": "Shift",
    "shiftl": "Shift",
    "shiftr": "Shift",
    "altleft": "Alt",
    "altright": "Alt",
    "altl": "Alt",
    "altr": "Alt",
    "option": "Alt",
    "cmd": "Meta",
    "command": "Meta",
    "win": "Meta",
    "winleft": "Meta",
    "winright": "Meta",
    "optionleft": "Alt",
    "optionright": "Alt",
    "windows": "Meta",
    "super": "Meta",
    "superl": "Meta",
    "superr": "Meta",
    "metal": "Meta",
    "return": "Enter",
    "kpenter": "Enter",
    "esc": "Escape",
    "del": "Delete",
    "ins": "Insert",
    "spacebar": "Space",
    "pgup": "PageUp",
    "prior": "PageUp",
    "pgdn": "PageDown",
    "next": "PageDown",
    "up": "ArrowUp",
    "down": "ArrowDown",
    "left": "ArrowLeft",
    "right": "ArrowRight",
    "print": "PrintScreen",
    "prtsc": "PrintScreen",
    "prtscr": "PrintScreen",
    "prntscrn": "PrintScreen",
    "menu": "ContextMenu",
    "apps": "ContextMenu",
    "minus": "-",
    "plus": "+",
    "equal": "=",
    "comma": ",",
    "period": ".",
    "slash": "/",
    "backslash": "\\",
    "semicolon": ";",
    "apostrophe": "'",
    "grave": "`",
    "bracketleft": "[",
    "bracketright": "]",
    "underscore": "_",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "decimal": ".",
    **{f"num{digit}": str(digit) for digit in range(10)},
}
_KNOWN = {name.lower(): name for name in _NAMED} | _ALIASES


def key_name(said: str) -> str:
    """Return the name of one key, as in this module.

    Raises:
        BadAction: there is no such key.
    """
    if len(said) == 1 and said.isprintable():
        return "Space" if said == " " else said
    found = _KNOWN.get(re.sub(r"[\s_-]", "", said).lower())
    if found is None:
        raise BadAction(
            f"there is no key {said!r}; use a character or a name like Enter, Tab, Control, "
            "ArrowLeft, F5"
        )
    return found


def keys_of(said: str) -> Keys:
    """Return the keys of a combination like ``ctrl+shift+t``, ``Control+a`` or ``ctrl c``.

    Raises:
        BadAction: it is empty, or a part of it is not a key.
    """
    if said in {"+", " "}:
        return (key_name(said),)
    # A plus at the end is the key itself: "ctrl++".
    head, plus = (said[:-1], ("+",)) if said.endswith("++") else (said, ())
    parts = [part for part in re.split(r"\+|\s+", head) if part]
    return chord([*parts, *plus])


def chord(names: Sequence[str]) -> Keys:
    """Return keys that are pressed together, modifiers first.

    Raises:
        BadAction: the list is empty, or an entry is not a key.
    """
    keys = dict.fromkeys(map(key_name, names))
    if not keys:
        raise BadAction("no key was named")
    order = {name: index for index, name in enumerate(MODIFIERS)}
    return tuple(sorted(keys, key=lambda key: order.get(key, len(order))))


def held_keys(names: Sequence[str]) -> Keys:
    """Return modifiers that are held during a mouse action; the list may be empty.

    Raises:
        BadAction: an entry is not a modifier.
    """
    held = chord(names) if names else ()
    if wrong := [key for key in held if key not in MODIFIERS]:
        raise BadAction(f"only {', '.join(MODIFIERS)} can be held with the mouse, not {wrong[0]}")
    return held
