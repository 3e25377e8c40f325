"""The elements of a desktop as text for the agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trajgym.envs.gui.actions._types import Point

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.envs.gui.actions._types import Scale
    from trajgym.envs.gui.desktop._desktop import DesktopElement

__all__ = ["elements_text"]


def elements_text(elements: Iterable[DesktopElement], scale: Scale, chars: int) -> str:
    """Return elements as text, one per line, indented as in the tree.

    ``push button "OK" at 469,337 (focused)``: role, name, middle, text or value, states.

    Args:
        elements: in the order of the tree.
        scale: from the agent's coordinates to the screen.
        chars: bound of the text; elements beyond it are counted.
    """
    lines: list[str] = []
    size = left_out = 0
    for one in elements:
        line = _line(one, scale)
        size += len(line) + 1
        if left_out or size > chars:
            left_out += 1
        else:
            lines.append(line)
    if left_out:
        lines.append(f"[... {left_out} more elements ...]")
    return "\n".join(lines)


def _line(one: DesktopElement, scale: Scale) -> str:
    left, top, width, height = one.box
    parts = [f"{'  ' * one.depth}{one.role}"]
    if one.name:
        parts.append(json.dumps(one.name, ensure_ascii=False))
    if width > 0 and height > 0:
        middle = Point(left + width // 2, top + height // 2)
        parts.append("at {},{}".format(*scale.shown_point(middle)))
    if one.text and one.text != one.name:
        parts.append(f"text={json.dumps(one.text, ensure_ascii=False)}")
    if one.states:
        parts.append(f"({', '.join(one.states)})")
    return " ".join(parts)
