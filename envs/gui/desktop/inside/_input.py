"""The pointer and the keyboard, through the X server's test extension."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ._errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ._screen import Screen

__all__ = ["Input"]

_BUTTONS = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}
_NOTCH = 100
_MOST_NOTCHES = 100
_DRAG_PAUSE = 0.01
_LEARN_SECONDS = 0.1
"""Applications are notified of a changed key map by a separate event."""
_NAMES = {
    "Control": "Control_L",
    "Shift": "Shift_L",
    "Alt": "Alt_L",
    "Meta": "Super_L",
    "Enter": "Return",
    "Backspace": "BackSpace",
    "Space": "space",
    "CapsLock": "Caps_Lock",
    "PageUp": "Page_Up",
    "PageDown": "Page_Down",
    "ArrowUp": "Up",
    "ArrowDown": "Down",
    "ArrowLeft": "Left",
    "ArrowRight": "Right",
    "PrintScreen": "Print",
    "ScrollLock": "Scroll_Lock",
    "NumLock": "Num_Lock",
    "ContextMenu": "Menu",
}
_VENDOR = 0x10000000
"""Symbols from here on are vendor-specific, such as media keys."""
_SHORTCUT = {"Control", "Alt", "Meta"}
_CONTROLS = {"\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape"}


class Input:
    """Moves, presses and types.

    Characters that the keyboard lacks are mapped to unused keys, as many at a time as there are
    such keys; a key is remapped only after the application has read the previous character.

    Args:
        screen: where.
        wait_until_read: returns once the active application has read what it was sent.
    """

    def __init__(self, screen: Screen, wait_until_read: Callable[[], None]) -> None:
        self._screen = screen
        self._display: Any = screen.display
        self._wait_until_read = wait_until_read
        self._rows, self._codes, self._spare = self._read_map()
        self._learned: list[int] = []
        self._down: set[int] = set()
        self._pressed: set[int] = set()

    # The pointer ----------------------------------------------------------------------------

    def pointer(self) -> tuple[int, int]:
        """Return where the pointer is."""
        seen = self._screen.root.query_pointer()
        return int(seen.root_x), int(seen.root_y)

    def move(self, at: Sequence[int] | None) -> None:
        """Move the pointer; None leaves it where it is."""
        from Xlib import X

        if at is None:
            return
        if not (0 <= at[0] < self._screen.width and 0 <= at[1] < self._screen.height):
            raise Refused(f"{tuple(at)} is outside the screen")
        self._fake(X.MotionNotify, 0, x=int(at[0]), y=int(at[1]))

    def click(self, at: Sequence[int] | None, button: str, count: int) -> None:
        """Click, ``count`` times."""
        self.move(at)
        for _ in range(min(count, 5)):
            self.button(button, down=True)
            self.button(button, down=False)

    def button(self, button: str, *, down: bool) -> None:
        """Press or release a button."""
        from Xlib import X

        number = _BUTTONS.get(button)
        if number is None:
            raise Refused(f"there is no button {button!r}")
        self._fake(X.ButtonPress if down else X.ButtonRelease, number)
        (self._pressed.add if down else self._pressed.discard)(number)

    def drag(self, path: Sequence[Sequence[int]], button: str) -> None:
        """Press at the first point, move through the others, release at the last."""
        self.move(path[0])
        self.button(button, down=True)
        try:
            for start, end in pairwise(path):
                for part in (0.25, 0.5, 0.75, 1.0):
                    step = [round(a + (b - a) * part) for a, b in zip(start, end, strict=True)]
                    self.move(step)
                    self._display.sync()
                    time.sleep(_DRAG_PAUSE)  # toolkits recognise a drag only after several motions
        finally:
            self.button(button, down=False)

    def scroll(self, at: Sequence[int] | None, dx: int, dy: int) -> None:
        """Turn the wheel, by pixels; down and to the right are positive."""
        from Xlib import X

        self.move(at)
        for pixels, back, forth in ((dy, 4, 5), (dx, 6, 7)):
            notches = min(max(1, round(abs(pixels) / _NOTCH)), _MOST_NOTCHES) if pixels else 0
            for _ in range(notches):
                number = forth if pixels > 0 else back
                self._fake(X.ButtonPress, number)
                self._fake(X.ButtonRelease, number)

    # The keyboard -------------------------------------------------------------------------------

    def type(self, text: str) -> None:
        """Type text; a line break is the Enter key.

        Raises:
            Refused: a character can't be mapped to a key; nothing was typed.
        """
        symbols = [_symbol_of(character) for character in text]
        for part in self._parts(symbols):
            self._learn(part)
            for symbol in part:
                code, shifted = self._codes[symbol]
                self._tap(code, shifted=shifted)

    def _parts(self, symbols: Sequence[int]) -> Iterator[list[int]]:
        """Yield the symbols in parts whose missing characters all find a key."""
        known = set(self._codes) - set(self._learned)
        part: list[int] = []
        missing: set[int] = set()
        for symbol in symbols:
            if symbol not in known and symbol not in missing:
                if len(missing) == 2 * len(self._spare):
                    yield part
                    part, missing = [], set()
                missing.add(symbol)
            part.append(symbol)
        yield part

    def press(self, keys: Sequence[str], seconds: float) -> None:
        """Press keys together and release them in the opposite order."""
        # CTRL and C is the key c: only alone, or with Shift named, is a capital one with Shift.
        if _SHORTCUT.intersection(keys):
            keys = [key.lower() if len(key) == 1 else key for key in keys]
        with self.held(keys):
            self._display.sync()
            if seconds:
                time.sleep(seconds)

    def key(self, key: str, *, down: bool) -> None:
        """Press or release one key."""
        symbol = _symbol_of(key)
        self._learn([symbol])
        self._set(self._codes[symbol][0], down=down)

    def held(self, keys: Sequence[str]) -> _Held:
        """Return a context in which keys are down."""
        symbols = [_symbol_of(key) for key in keys]
        self._learn(symbols)
        codes: list[int] = []
        for symbol in symbols:
            code, shifted = self._codes[symbol]
            codes += [self._codes[_symbol_of("Shift")][0]] * shifted + [code]
        return _Held(self, list(dict.fromkeys(codes)))

    def release_all(self) -> None:
        """Release keys and buttons that an interrupted action left pressed."""
        from Xlib import X

        for code in list(self._down):
            self._set(code, down=False)
        for number in list(self._pressed):
            self._fake(X.ButtonRelease, number)
        self._pressed.clear()
        self.sync()

    def sync(self) -> None:
        """Wait until the X server has processed all requests."""
        self._display.sync()

    def _tap(self, code: int, *, shifted: bool) -> None:
        shift = self._codes[_symbol_of("Shift")][0]
        if shifted:
            self._set(shift, down=True)
        self._set(code, down=True)
        self._set(code, down=False)
        if shifted:
            self._set(shift, down=False)

    def _set(self, code: int, *, down: bool) -> None:
        from Xlib import X

        self._fake(X.KeyPress if down else X.KeyRelease, code)
        (self._down.add if down else self._down.discard)(code)

    def _fake(self, kind: int, detail: int, **place: int) -> None:
        from Xlib.ext import xtest

        xtest.fake_input(self._display, kind, detail, **place)

    def _read_map(self) -> tuple[list[list[int]], dict[int, tuple[int, bool]], list[int]]:
        """Return the key map's rows, where each symbol is (code, with shift), and the free codes.

        Free are codes with nothing on them, and those of media keys: no task needs them.
        """
        info = self._display.display.info
        self._first, last = int(info.min_keycode), int(info.max_keycode)
        codes: dict[int, tuple[int, bool]] = {}
        spare: list[int] = []
        found = self._display.get_keyboard_mapping(self._first, last - self._first + 1)
        rows = [[int(symbol) for symbol in row] for row in found]
        modifiers = {code for row in self._display.get_modifier_mapping() for code in row}
        for offset, symbols in enumerate(rows):
            code = self._first + offset
            free = all(not symbol or symbol >= _VENDOR for symbol in symbols)
            if free and code not in modifiers:
                spare.append(code)
                continue
            for level in (0, 1):
                if level < len(symbols) and symbols[level]:
                    codes.setdefault(symbols[level], (code, level == 1))
        return rows, codes, spare

    def _learn(self, symbols: Iterable[int]) -> None:
        """Map symbols to free keys, two per key, replacing earlier mappings if there is no room."""
        wanted = list(dict.fromkeys(symbols))
        missing = [symbol for symbol in wanted if symbol not in self._codes]
        if not missing:
            return
        if len(self._learned) + len(missing) > 2 * len(self._spare):
            kept = set(wanted)
            self.sync()
            self._wait_until_read()
            missing += [symbol for symbol in self._learned if symbol in kept]
            for symbol in self._learned:
                del self._codes[symbol]
            self._learned = []
        if len(missing) > 2 * len(self._spare):
            raise Refused("the combination has more unmapped keys than the keyboard has free codes")
        for symbol in missing:
            place = len(self._learned)
            code, shifted = self._spare[place // 2], place % 2 == 1
            self._learned.append(symbol)
            self._codes[symbol] = (code, shifted)
        self._write_map()

    def _write_map(self) -> None:
        """Write the rows of all free keys in one request: applications learn of each."""
        rows = {code: self._learned[2 * n : 2 * n + 2] for n, code in enumerate(self._spare)}
        first, last = min(rows), max(rows)
        width = len(self._rows[0])
        written = []
        for code in range(first, last + 1):
            pair = rows.get(code)
            if pair is None:
                written.append(tuple(self._rows[code - self._first]))
                continue
            low, high = (*pair, 0, 0)[:2]
            written.append((low, high or low, *(0,) * (width - 2)))
        self._display.change_keyboard_mapping(first, written)
        self._display.sync()
        time.sleep(_LEARN_SECONDS)


class _Held:
    """Keys that are down inside a ``with`` block."""

    def __init__(self, keyboard: Input, codes: list[int]) -> None:
        self._keyboard = keyboard
        self._codes = codes

    def __enter__(self) -> None:
        for code in self._codes:
            self._keyboard._set(code, down=True)

    def __exit__(self, *_: object) -> None:
        for code in reversed(self._codes):
            self._keyboard._set(code, down=False)


def _symbol_of(key: str) -> int:
    """Return the keysym of a key's name or a character.

    Raises:
        Refused: there is no such key.
    """
    from Xlib import XK

    if len(key) == 1:
        named = _CONTROLS.get(key)
        if named is None:
            point = ord(key)
            if point < 0x20 or 0x7F <= point < 0xA0 or 0xD800 <= point < 0xE000:
                raise Refused(f"U+{point:04X} is a control character: it can't be typed")
            # Latin-1 is its own keysym; the rest of Unicode has a range of its own.
            return point if 0x20 <= point <= 0x7E or 0xA0 <= point <= 0xFF else 0x01000000 | point
        key = named
    found = int(XK.string_to_keysym(_NAMES.get(key, key)))
    if not found:
        raise Refused(f"there is no key {key!r} on this keyboard")
    return found
