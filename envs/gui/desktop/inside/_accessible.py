"""The accessibility tree of the applications, through AT-SPI."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import ScreenGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Accessibility"]

T = TypeVar("T")

_LAUNCHER = "/usr/libexec/at-spi-bus-launcher"
_START_SECONDS = 20.0
_CALL_MILLISECONDS = 1000
"""Limit of one call to an application: one that hangs must not hang the look."""
_SILENCE_SECONDS = 0.9
"""Seconds after which a call that failed counts as not answered."""
_MOST_ELEMENTS = 1500
_MOST_CELLS = 400
_MOST_COLUMNS = 30
_MOST_CHARS = 300
_LAYOUT = {
    *("filler", "panel", "scroll pane", "viewport", "section", "redundant object", "unknown"),
    *("separator", "split pane", "layered pane", "root pane", "grouping", "scroll bar"),
}
"""Roles that are left out if they have no name; their children take their place."""
_VALUED = {"slider", "progress bar", "level bar", "dial", "scroll bar"}
_TABLES = {"table", "tree table"}
_TEXTS = {
    *("text", "entry", "password text", "paragraph", "terminal", "spin button", "table cell"),
    *("document text", "editbar", "heading"),
}


class _Silent(Exception):
    """An application did not answer within the limit of a call."""


class Accessibility:
    """A session bus with AT-SPI; applications that start after it report their elements.

    Args:
        spawn: starts a process that ends with the sandbox.
        seconds: limit for reading all elements; what was read until then is returned.

    Raises:
        ScreenGone: it did not start.
    """

    def __init__(self, spawn: Callable[[list[str]], Any], seconds: float) -> None:
        self._seconds = seconds
        done = subprocess.run(
            ["dbus-daemon", "--session", "--fork", "--print-address"],
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        if done.returncode or not Path(_LAUNCHER).exists():
            raise ScreenGone(f"the accessibility bus did not start: {done.stderr[-300:]}")
        os.environ["DBUS_SESSION_BUS_ADDRESS"] = done.stdout.strip()
        os.environ.pop("NO_AT_BRIDGE", None)
        spawn([_LAUNCHER, "--launch-immediately"])
        self._atspi: Any = None
        self._end = 0.0
        self._menu_bottom = 0
        """Of the window that is being listed."""

    def elements(self) -> tuple[list[dict[str, Any]], str]:
        """Return the visible elements of all windows, in the order of the tree.

        Each has ``depth``, ``role``, ``name``, ``box`` (left, top, width, height in pixels of the
        screen), ``states`` and ``text``. Elements without a name that only arrange others are left
        out. At most 1,500 are listed.

        Returns:
            The elements, and why they are not all; empty if they are.
        """
        atspi = self._library()
        self._end = time.monotonic() + self._seconds
        try:
            self._refresh(atspi)
            return self._read(atspi)
        except _Silent:
            return [], "the registry of applications did not answer"

    def _read(self, atspi: Any) -> tuple[list[dict[str, Any]], str]:
        found: list[dict[str, Any]] = []
        silent: list[str] = []
        for application in _children(atspi, atspi.get_desktop(0)):
            if self._is_over():
                break
            try:
                for window in self._windows(atspi, application):
                    found += islice(self._below(atspi, window, 0), _MOST_ELEMENTS - len(found))
            except _Silent:
                silent.append(_program(atspi, application))
        if self._is_over():
            return found, f"reading them took longer than {self._seconds:g} s"
        if silent:
            return found, f"{', '.join(silent)} did not answer"
        return found, f"there are more than {_MOST_ELEMENTS}" if len(
            found
        ) >= _MOST_ELEMENTS else ""

    def _is_over(self) -> bool:
        return time.monotonic() > self._end

    def _library(self) -> Any:
        if self._atspi is None:
            import gi

            gi.require_version("Atspi", "2.0")
            from gi.repository import Atspi

            Atspi.init()
            Atspi.set_timeout(_CALL_MILLISECONDS, _CALL_MILLISECONDS)
            self._atspi = Atspi
        return self._atspi

    def _refresh(self, atspi: Any) -> None:
        """Process the events that arrived since the last look, and forget what was read then."""
        from gi.repository import GLib

        context = GLib.MainContext.default()
        while context.pending() and not self._is_over():
            context.iteration(may_block=False)
        for application in _children(atspi, atspi.get_desktop(0)):
            application.clear_cache()

    def _windows(self, atspi: Any, application: Any) -> Iterator[Any]:
        for window in _children(atspi, application):
            if _has(atspi, window, "SHOWING"):
                yield window

    def _below(self, atspi: Any, node: Any, depth: int, down: int = 0) -> Iterator[dict[str, Any]]:
        """Yield a node and those below it, moved ``down`` by pixels.

        Until its window is used, what LibreOffice draws itself, in a root pane, reports places as
        if there were no menu bar above it: the pane is then moved below the bar.
        """
        if self._is_over():
            return
        described = _answered(lambda: _described(atspi, node, depth), None)
        if described is None:
            return
        left, top, width, height = described["box"]
        if described["role"] == "menu bar" and (width <= 0 or height <= 0):
            return  # LibreOffice lists its menus twice
        if not depth:
            self._menu_bottom = 0
        if described["role"] == "menu bar":
            self._menu_bottom = top + height
        elif described["role"] == "root pane":
            down += max(0, self._menu_bottom - top)
        described["box"] = (left, top + down, width, height)
        shown = bool(described["name"] or described["text"]) or described["role"] not in _LAYOUT
        if shown:
            yield described
        if described["role"] in _TABLES and _count(atspi, node) > _MOST_CELLS:
            children: Iterator[Any] = self._cells(atspi, node, (left, top, width, height))
        else:
            children = _children(atspi, node)
        for child in children:
            if self._is_over():
                return
            if _has(atspi, child, "SHOWING"):
                yield from self._below(atspi, child, depth + shown, down)

    def _cells(self, atspi: Any, table: Any, box: tuple[int, int, int, int]) -> Iterator[Any]:
        """Yield the cells of a large table that are in view and not empty, row by row."""
        left, top, width, height = box
        with suppress(Exception):
            grid, place = table.get_table_iface(), table.get_component_iface()
            corners = []
            for x, y in ((left + 2, top + 2), (left + width - 3, top + height - 3)):
                cell = atspi.Component.get_accessible_at_point(place, x, y, atspi.CoordType.SCREEN)
                index = cell.get_index_in_parent()
                corners.append(
                    (atspi.Table.get_row_at_index(grid, index),
                     atspi.Table.get_column_at_index(grid, index))
                )  # fmt: skip
            (first_row, first_column), (last_row, last_column) = corners
            rows, columns = range(first_row, last_row + 1), range(first_column, last_column + 1)
            for row, column in islice(product(rows, columns[:_MOST_COLUMNS]), _MOST_CELLS):
                if self._is_over():
                    return
                cell = atspi.Table.get_accessible_at(grid, row, column)
                if cell is not None and (_text(atspi, cell) or _has(atspi, cell, "FOCUSED")):
                    yield cell


def _answered(ask: Callable[[], T], otherwise: T) -> T:
    """Return what an application answers, or something else if it answers with an error.

    Raises:
        _Silent: it did not answer in time.
    """
    begun = time.monotonic()
    try:
        found = ask()
    except Exception:  # noqa: BLE001 - boundary: the element or its application is gone
        found = otherwise
    # Some calls return nothing instead of an error.
    if (found is None or found == otherwise) and time.monotonic() - begun >= _SILENCE_SECONDS:
        raise _Silent
    return found


def _children(atspi: Any, node: Any) -> Iterator[Any]:
    """Yield the children of a node."""
    for index in range(min(_count(atspi, node), _MOST_ELEMENTS)):
        child = _answered(partial(atspi.Accessible.get_child_at_index, node, index), None)
        if child is not None:
            yield child


def _program(atspi: Any, application: Any) -> str:
    """Return the name of an application's program, which the bus knows without asking it."""
    with suppress(Exception):
        pid = atspi.Accessible.get_process_id(application)
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "an application"


def _count(atspi: Any, node: Any) -> int:
    return max(0, int(_answered(lambda: atspi.Accessible.get_child_count(node), -1)))


def _has(atspi: Any, node: Any, state: str) -> bool:
    kind = getattr(atspi.StateType, state)
    return bool(_answered(lambda: node.get_state_set().contains(kind), False))  # noqa: FBT003


def _described(atspi: Any, node: Any, depth: int) -> dict[str, Any] | None:
    role = node.get_role_name()
    box = (0, 0, 0, 0)
    if (component := node.get_component_iface()) is not None:
        place = atspi.Component.get_extents(component, atspi.CoordType.SCREEN)
        box = (place.x, place.y, place.width, place.height)
    found = node.get_state_set()
    names = [state for state in _STATES if found.contains(getattr(atspi.StateType, state))]
    states = [name.lower() for name in names]
    if "SENSITIVE" not in names and _can_be_disabled(role):
        states.append("disabled")
    states = [name for name in states if name != "sensitive"]
    return {
        "depth": depth,
        "role": role,
        "name": _flat(node.get_name() or ""),
        "box": box,
        "states": states,
        "text": _shown(atspi, node, role),
    }


_STATES = (
    *("ACTIVE", "FOCUSED", "CHECKED", "SELECTED", "EXPANDED", "PRESSED", "EDITABLE", "SENSITIVE"),
)


def _can_be_disabled(role: str) -> bool:
    return role.endswith(("button", "item", "box", "text", "entry")) or role == "menu"


def _shown(atspi: Any, node: Any, role: str) -> str:
    if role in _TEXTS:
        return _text(atspi, node)
    return _value(atspi, node) if role in _VALUED else ""


def _text(atspi: Any, node: Any) -> str:
    text = node.get_text_iface()
    if text is None:
        return ""
    count = atspi.Text.get_character_count(text)
    shown = str(atspi.Text.get_text(text, 0, min(count, _MOST_CHARS)))
    return _flat(shown) + ("[...]" if count > _MOST_CHARS else "")


def _value(atspi: Any, node: Any) -> str:
    value = node.get_value_iface()
    return "" if value is None else f"{atspi.Value.get_current_value(value):g}"


def _flat(text: str) -> str:
    return " ".join(text.split())[:_MOST_CHARS]
