"""The accessibility tree as text, with stable ids of elements."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._snapshot import Node

__all__ = ["Ids", "Line", "TreeText", "line_of", "lines_of", "render", "value_of"]

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
        """Drop the elements of the previous document, whose node ids are reused."""
        self.by_node.clear()
        self.nodes.clear()
        self.roles.clear()

    def bind(self, name: str, node: int) -> None:
        """Assign an id to a node."""
        self.by_node[node], self.nodes[name] = name, node


@dataclass
class Line:
    """One element in the text."""

    depth: int
    node: int
    role: str
    name: str
    notes: tuple[str, ...]
    clickable: bool = False

    def text(self, name: str) -> str:
        """Return the line, with the element's id."""
        words = [f"[{name}]" if name else "", self.role]
        words += [json.dumps(self.name, ensure_ascii=False)] if self.name else []
        return "  " * self.depth + " ".join(word for word in (*words, *self.notes) if word)


@dataclass
class TreeText:
    """The elements of a page, as text for the agent."""

    text: str
    focused: str
    digest: str
    """Hash of the whole tree without ids; equal for equal pages."""
    order: list[str]
    """Ids of all elements, in order of the tree."""
    left_out: int


def lines_of(
    nodes: list[dict[str, Any]], depth: int = 0, clickable: dict[int, Node] | None = None
) -> list[Line]:
    """Return the elements of one frame's accessibility tree that an agent can read or use.

    Args:
        nodes: as returned by the debugging protocol.
        depth: depth of the outermost ones.
        clickable: elements that react to clicks, by DOM node id; listed regardless of their role.
    """
    by_id = {node["nodeId"]: node for node in nodes}
    found: list[Line] = []
    # An explicit stack: pages may nest deeper than Python's recursion limit.
    nothing: tuple[str, ...] = ()
    stack = [(node, depth, nothing) for node in nodes if node.get("parentId") not in by_id][::-1]
    while stack:
        node, level, above = stack.pop()
        place = (clickable or {}).get(node.get("backendDOMNodeId", 0))
        line = line_of(node, level, above, clickable=place is not None)
        if line is not None:
            if place is not None and not line.name:
                _describe(line, place)
            found.append(line)
            level, above = level + 1, (line.name, value_of(node))
        children = [by_id[child] for child in node.get("childIds", ()) if child in by_id]
        stack += [(child, level, above) for child in reversed(children)]
    return found


def _describe(line: Line, place: Node) -> None:
    """Describe an element without a name by its text, or by its tag."""
    line.name = place.content()[:_MAX_TEXT]
    if not line.name:
        line.notes = (*line.notes, place.hint())


def line_of(
    node: dict[str, Any], depth: int, above: tuple[str, ...], *, clickable: bool = False
) -> Line | None:
    """Return the line of one node, or None if an agent can neither read nor use it.

    Args:
        node: as returned by the debugging protocol.
        depth: depth of its line.
        above: name and value of the line above it: text that only repeats them is left out.
        clickable: whether it reacts to clicks, regardless of its role.
    """
    role = str(node.get("role", {}).get("value", ""))
    said = node.get("name", {}).get("value", "")
    name = " ".join(str(said or "").split())[:_MAX_TEXT]
    properties = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
    if "backendDOMNodeId" not in node or role == "InlineTextBox":
        return None
    if not clickable and (node.get("ignored") or role in _LAYOUT):
        return None
    if not clickable and role in _SILENT and not (name or properties.get("focusable")):
        return None
    if role == "StaticText" and (not name or name in above):
        return None
    if clickable and (role in _SILENT or node.get("ignored")):
        role = "clickable"
    notes = [flag for flag in _FLAGS if properties.get(flag) in (True, "true")]
    if role == "RootWebArea":
        notes.clear()
    notes += [f"{state}={_word(properties[state])}" for state in _STATES if state in properties]
    value = value_of(node)
    if value and value != name:
        notes.insert(0, "value=" + json.dumps(value[:_MAX_TEXT], ensure_ascii=False))
    if properties.get("invalid") not in (None, False, "false"):
        notes.append("invalid")
    shown = _NAMES.get(role, role)
    return Line(depth, node["backendDOMNodeId"], shown, name, tuple(notes), clickable)


def value_of(node: dict[str, Any]) -> str:
    """Return the text that an element holds."""
    value = node.get("value", {}).get("value")
    return "" if value is None else str(value)


def _word(value: Any) -> str:
    return str(value).lower()


def render(lines: list[Line], ids: Ids, limit: int) -> TreeText:
    """Return text of about ``limit`` characters at most; elements left out get ids, too."""
    names = [ids.of(line.node, line.role) if line.role != "page" else "" for line in lines]
    bare = hashlib.sha256()
    shown: list[str] = []
    size = 0
    for line, name in zip(lines, names, strict=True):
        # The focus depends on earlier clicks: it is part of the picture, not of the page.
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
