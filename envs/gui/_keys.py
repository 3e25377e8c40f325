"""Names of keys, whatever a model calls them.

The names here are those of the DOM (``Control``, ``ArrowLeft``, ``Enter``, ``a``), which Chromium
takes as they are; X11 spells of them are aliases.
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
}
_KNOWN = {name.lower(): name for name in _NAMED} | _ALIASES


def key_name(said: str) -> str:
    """Return the name of one key, as in this module.

    Raises:
        BadAction: no key is called that.
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
        BadAction: it is empty, or a part of it is no key.
    """
    if said in {"+", " "}:
        return (key_name(said),)
    # A plus at the end is the key itself: "ctrl++".
    head, plus = (said[:-1], ("+",)) if said.endswith("++") else (said, ())
    parts = [part for part in re.split(r"\+|\s+", head) if part]
    return chord([*parts, *plus])


def chord(names: Sequence[str]) -> Keys:
    """Return keys that are pressed together, by their names, the modifiers first.

    Raises:
        BadAction: there is none, or one of them is no key.
    """
    keys = dict.fromkeys(map(key_name, names))
    if not keys:
        raise BadAction("no key was named")
    order = {name: index for index, name in enumerate(MODIFIERS)}
    return tuple(sorted(keys, key=lambda key: order.get(key, len(order))))


def held_keys(names: Sequence[str]) -> Keys:
    """Return modifiers that are held while the mouse does something; none is fine.

    Raises:
        BadAction: one of them is no modifier.
    """
    held = chord(names) if names else ()
    if wrong := [key for key in held if key not in MODIFIERS]:
        raise BadAction(f"only {', '.join(MODIFIERS)} can be held with the mouse, not {wrong[0]}")
    return held
