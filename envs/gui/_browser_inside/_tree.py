"""The accessibility tree as text, with ids of elements that stay theirs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ids", "Line", "TreeText", "lines_of", "render"]

_SILENT = {
    *("generic", "none", "presentation", "InlineTextBox", "LineBreak", "Ignored", "Legend"),
    *("LabelText", "paragraph", "form", "rowgroup", "LayoutTable", "LayoutTableRow"),
    *("LayoutTableCell", "Pre", "strong", "emphasis", "fieldset"),
}
_LAYOUT = {"LayoutTable", "LayoutTableRow", "LayoutTableCell", "MenuListPopup", "LabelText"}
_FLAGS = ("focused", "disabled", "required", "readonly", "selected", "pressed", "modal")
_STATES = ("checked", "expanded")
_NAMES = {"RootWebArea": "page", "StaticText": "text", "image": "image", "Iframe": "frame"}
_MAX_TEXT = 300


@dataclass
class Ids:
    """Ids of the elements of one tab.

    An element keeps its id as long as it lives, and no id is given twice: numbers go on counting
    when the tab goes to another page.
    """

    last: int = 0
    by_node: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)

    def of(self, node: int, role: str = "") -> str:
        """Return the id of a node of the DOM, a new one if it has none."""
        found = self.by_node.get(node)
        if found is None:
            self.last += 1
            found = str(self.last)
            self.bind(found, node)
        self.roles[found] = role or self.roles.get(found, "")
        return found

    def forget(self) -> None:
        """Drop the elements of a document that is gone: its nodes' numbers come again."""
        self.by_node.clear()
        self.nodes.clear()
        self.roles.clear()

    def bind(self, name: str, node: int) -> None:
        """Let a node have this id."""
        self.by_node[node], self.nodes[name] = name, node


@dataclass
class Line:
    """One element in the text."""

    depth: int
    node: int
    role: str
    name: str
    notes: tuple[str, ...]

    def text(self, name: str) -> str:
        """Return the line, with the element's id."""
        words = [f"[{name}]" if name else "", self.role]
        words += [json.dumps(self.name, ensure_ascii=False)] if self.name else []
        return "  " * self.depth + " ".join(word for word in (*words, *self.notes) if word)


@dataclass
class TreeText:
    """What the agent reads of a page's elements."""

    text: str
    focused: str
    digest: str
    """Of the whole tree without its ids: equal pages, equal digests."""
    order: list[str]
    """Ids of all elements, in order of the tree."""
    left_out: int


def lines_of(nodes: list[dict[str, Any]], depth: int = 0) -> list[Line]:
    """Return the elements of one frame's accessibility tree that say something."""
    by_id = {node["nodeId"]: node for node in nodes}
    found: list[Line] = []
    # Own stack: pages may nest deeper than Python recurses.
    nothing: tuple[str, ...] = ()
    stack = [(node, depth, nothing) for node in nodes if node.get("parentId") not in by_id][::-1]
    while stack:
        node, level, above = stack.pop()
        line = _line(node, level, above)
        if line is not None:
            found.append(line)
            level, above = level + 1, (line.name, _value(node))
        children = [by_id[child] for child in node.get("childIds", ()) if child in by_id]
        stack += [(child, level, above) for child in reversed(children)]
    return found


def _line(node: dict[str, Any], depth: int, above: tuple[str, ...]) -> Line | None:
    role = str(node.get("role", {}).get("value", ""))
    said = node.get("name", {}).get("value", "")
    name = " ".join(str(said or "").split())[:_MAX_TEXT]
    properties = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
    if node.get("ignored") or role in {"InlineTextBox", *_LAYOUT}:
        return None
    if "backendDOMNodeId" not in node:
        return None
    if role in _SILENT and not (name or properties.get("focusable")):
        return None
    if role == "StaticText" and (not name or name in above):
        return None
    notes = [flag for flag in _FLAGS if properties.get(flag) in (True, "true")]
    if role == "RootWebArea":
        notes.clear()
    notes += [f"{state}={_word(properties[state])}" for state in _STATES if state in properties]
    value = _value(node)
    if value and value != name:
        notes.insert(0, "value=" + json.dumps(value[:_MAX_TEXT], ensure_ascii=False))
    if properties.get("invalid") not in (None, False, "false"):
        notes.append("invalid")
    return Line(depth, node["backendDOMNodeId"], _NAMES.get(role, role), name, tuple(notes))


def _value(node: dict[str, Any]) -> str:
    value = node.get("value", {}).get("value")
    return "" if value is None else str(value)


def _word(value: Any) -> str:
    return str(value).lower()


def render(lines: list[Line], ids: Ids, limit: int) -> TreeText:
    """Return text of at most about ``limit`` characters; every element gets its id all the same."""
    names = [ids.of(line.node, line.role) if line.role != "page" else "" for line in lines]
    bare = hashlib.sha256()
    shown: list[str] = []
    size = 0
    for line, name in zip(lines, names, strict=True):
        # What has the focus follows the pointer: it is part of the picture, not of the page.
        bare.update(line.text("").replace(" focused", "").encode(errors="replace") + b"\n")
        text = line.text(name)
        size += len(text) + 1
        if size <= limit:
            shown.append(text)
    left_out = len(lines) - len(shown)
    if left_out:
        shown.append(f"[... {left_out} more elements left out; scroll or narrow the page ...]")
    focused = next(
        (n for line, n in zip(lines, names, strict=True) if "focused" in line.notes and n), ""
    )
    order = [name for name in names if name]
    return TreeText("\n".join(shown), focused, bare.hexdigest(), order, left_out)
