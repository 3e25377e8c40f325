"""The layout of a page: positions of elements, which are clickable, and the pruned HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import CDPSession

__all__ = ["Node", "Snapshot", "take_snapshot"]

_STYLES = ["cursor", "border-left-width", "border-top-width", "visibility"]
_ELEMENT, _TEXT, _DOCUMENT, _FRAGMENT = 1, 3, 9, 11
_SILENT = {"HTML", "BODY", "HEAD", "MAIN"}
_NEVER = {"SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "META", "LINK", "HEAD"}
_FIELDS = {"INPUT", "SELECT", "TEXTAREA", "BUTTON"}
_VOID = {"INPUT", "IMG", "BR", "HR"}
_KEPT = (
    *("id", "type", "name", "role", "href", "alt", "title", "placeholder", "value", "for"),
    *("aria-label", "aria-expanded", "aria-checked", "class", "fill", "disabled", "checked"),
)
_MOST_ATTRIBUTE = 60


@dataclass(slots=True)
class Node:
    """One node of the page, frames and shadow trees included."""

    backend: int
    parent: Node | None
    kind: int
    tag: str
    text: str
    attributes: dict[str, str]
    box: tuple[float, float, float, float] | None = None
    """Left, top, width and height in pixels of the view; None if it is not laid out."""
    clickable: bool = False
    pointer: bool = False
    children: list[Node] = field(default_factory=list)

    def within(self, other: int) -> bool:
        """Whether it is the node of that number, or a descendant of it."""
        node: Node | None = self
        while node is not None:
            if node.backend == other:
                return True
            node = node.parent
        return False

    def has_field(self) -> bool:
        """Whether it contains a visible field."""
        stack = list(self.children)
        while stack:
            node = stack.pop()
            if node.tag in _FIELDS and node.box is not None:
                return True
            stack += node.children
        return False

    def content(self, limit: int = 80) -> str:
        """Return the text inside, on one line."""
        words: list[str] = []
        stack, size = [self], 0
        while stack and size < limit:
            node = stack.pop()
            if node.kind == _TEXT:
                words += node.text.split()
                size += len(node.text)
            elif node.tag not in _NEVER:
                stack += reversed(node.children)
        return " ".join(words)[:limit]

    def hint(self) -> str:
        """Return a shortened opening tag, which distinguishes elements without a name."""
        words = [self.tag.lower()]
        for name in ("id", "class", "fill", "title", "data-id"):
            value = self.attributes.get(name, "").strip()
            if value:
                words.append(f'{name}="{value[:30]}"')
        return f"<{' '.join(words)[:90]}>"


@dataclass
class Snapshot:
    """All nodes of a page at one moment, by their DOM node ids."""

    nodes: dict[int, Node]
    root: Node

    def clickable(self) -> dict[int, Node]:
        """Return the elements that react to clicks: by a listener of their own, or by the cursor.

        If a whole region has the pointer cursor, only its outermost element counts; a label counts
        if its field is hidden.
        """
        fields = {
            name: node
            for node in self.nodes.values()
            if node.box is not None and (name := node.attributes.get("id"))
        }
        found = {}
        for node in self.nodes.values():
            if node.kind != _ELEMENT or node.box is None or node.tag in _SILENT:
                continue
            if node.tag == "LABEL" and (node.attributes.get("for") in fields or node.has_field()):
                continue
            handed = node.pointer and not (node.parent is not None and node.parent.pointer)
            if node.clickable or handed:
                found[node.backend] = node
        return found

    def html(self, ids: dict[int, str], limit: int) -> str:
        """Return the page as HTML without scripts, styles and most attributes.

        Args:
            ids: of elements, which get them as the attribute ``bid``.
            limit: maximum number of characters.
        """
        parts: list[str] = []
        size = 0
        for part in _html(self.root, ids):
            size += len(part) + 1
            if size > limit:
                parts.append("<!-- the rest is left out -->")
                break
            parts.append(part)
        return "\n".join(parts)


def _html(root: Node, ids: dict[int, str]) -> Iterator[str]:
    """Yield lines of HTML, one per tag or text; iterative, because pages may nest deeply."""
    stack: list[tuple[Node | str, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, str):
            yield " " * depth + node
            continue
        if node.kind == _TEXT:
            text = " ".join(node.text.split())
            if text:
                yield " " * depth + escape(text[:300], quote=False)
            continue
        if node.kind == _ELEMENT and node.tag not in _NEVER and node.tag[0] != ":":
            tag = node.tag.lower()
            given = {"bid": ids[node.backend]} if node.backend in ids else {}
            kept = {n: node.attributes[n] for n in _KEPT if node.attributes.get(n) is not None}
            words = [f'{n}="{escape(v[:_MOST_ATTRIBUTE])}"' for n, v in (given | kept).items()]
            plain = not words and len(node.children) == 1 and node.children[0].kind == _ELEMENT
            if plain:  # a wrapper around one element carries no information
                stack.append((node.children[0], depth))
                continue
            yield " " * depth + f"<{' '.join([tag, *words])}>"
            if node.tag not in _VOID:
                stack.append((f"</{tag}>", depth))
        elif node.kind not in {_DOCUMENT, _FRAGMENT}:
            continue
        deeper = depth + (node.kind == _ELEMENT)
        stack += [(child, deeper) for child in reversed(node.children)]


async def take_snapshot(session: CDPSession) -> Snapshot:
    """Return all nodes of a page with their places."""
    answer = await session.send("DOMSnapshot.captureSnapshot", {"computedStyles": _STYLES})
    return read_snapshot(answer)


def read_snapshot(said: dict[str, Any]) -> Snapshot:
    """Parse the result of ``DOMSnapshot.captureSnapshot``."""
    strings: list[str] = said["strings"]
    found: dict[int, Node] = {}
    documents = [_document(document, strings, found) for document in said["documents"]]
    for nodes, inner in documents:
        for index, number in inner.items():
            if documents[number][0]:
                root = documents[number][0][0]
                root.parent = nodes[index]
                nodes[index].children.append(root)
    placed: set[int] = set()
    waiting = [(0, (0.0, 0.0))]
    while waiting:  # positions of frames are relative to their parents: outermost first
        number, origin = waiting.pop()
        if number in placed:
            continue
        placed.add(number)
        nodes, inner = documents[number]
        waiting += _place(said["documents"][number], nodes, strings, origin, inner)
    return Snapshot(found, documents[0][0][0])


def _document(
    document: dict[str, Any], strings: list[str], found: dict[int, Node]
) -> tuple[list[Node], dict[int, int]]:
    """Return the nodes of one document, and which of them hold which other documents."""
    raw = document["nodes"]
    nodes: list[Node] = []
    parents, kinds = raw["parentIndex"], raw["nodeType"]
    names, values, given = raw["nodeName"], raw["nodeValue"], raw["attributes"]
    for index, backend in enumerate(raw["backendNodeId"]):
        parent = nodes[parents[index]] if parents[index] >= 0 else None
        flat = given[index]
        attributes = {
            strings[flat[i]]: strings[flat[i + 1]] if flat[i + 1] >= 0 else ""
            for i in range(0, len(flat), 2)
        }
        text = strings[values[index]] if kinds[index] == _TEXT and values[index] >= 0 else ""
        tag = strings[names[index]].upper() if kinds[index] == _ELEMENT else ""
        node = Node(backend, parent, kinds[index], tag, text, attributes)
        if parent is not None:
            parent.children.append(node)
        nodes.append(node)
        found[backend] = node
    for index in raw["isClickable"]["index"]:
        nodes[index].clickable = True
    inner = raw["contentDocumentIndex"]
    return nodes, dict(zip(inner["index"], inner["value"], strict=True))


def _place(
    document: dict[str, Any],
    nodes: list[Node],
    strings: list[str],
    origin: tuple[float, float],
    inner: dict[int, int],
) -> list[tuple[int, tuple[float, float]]]:
    """Give the nodes of a document their boxes; return its frames' documents and their origins."""
    left = origin[0] - document.get("scrollOffsetX", 0)
    top = origin[1] - document.get("scrollOffsetY", 0)
    layout = document["layout"]
    frames = []
    for index, bounds, styles in zip(
        layout["nodeIndex"], layout["bounds"], layout["styles"], strict=True
    ):
        node, (x, y, width, height) = nodes[index], bounds
        said = [strings[one] if one >= 0 else "" for one in styles]
        node.pointer = bool(said) and said[0] == "pointer"
        hidden = len(said) > 3 and said[3] != "visible"
        if width >= 1 and height >= 1 and not hidden:
            node.box = (x + left, y + top, width, height)
        if index in inner:
            edge = (_pixels(said[1]), _pixels(said[2])) if len(said) > 2 else (0.0, 0.0)
            frames.append((inner[index], (x + left + edge[0], y + top + edge[1])))
    _place_areas(nodes)
    return frames


def _place_areas(nodes: list[Node]) -> None:
    """Give the areas of image maps, which are not laid out, their places on the images."""
    images = {
        node.attributes["usemap"].removeprefix("#"): node.box
        for node in nodes
        if node.box is not None and node.attributes.get("usemap")
    }
    for node in nodes:
        if not images or node.tag != "AREA":
            continue
        above = node.parent
        while above is not None and above.tag != "MAP":
            above = above.parent
        image = images.get(above.attributes.get("name", "")) if above is not None else None
        sides = _sides(node.attributes)
        if image is not None and sides is not None:
            left, top, right, bottom = sides
            node.box = (image[0] + left, image[1] + top, right - left, bottom - top)


def _sides(attributes: dict[str, str]) -> tuple[float, float, float, float] | None:
    """Return left, top, right and bottom of an area within its image; None if it has none."""
    at = [_pixels(part.strip()) for part in attributes.get("coords", "").split(",")]
    if attributes.get("shape", "rect").lower().startswith("circ"):
        if len(at) != 3:
            return None
        return at[0] - at[2], at[1] - at[2], at[0] + at[2], at[1] + at[2]
    if len(at) < 4:
        return None
    sides = min(at[0::2]), min(at[1::2]), max(at[0::2]), max(at[1::2])
    return sides if sides[2] - sides[0] >= 1 and sides[3] - sides[1] >= 1 else None


def _pixels(style: str) -> float:
    try:
        return float(style.removesuffix("px"))
    except ValueError:
        return 0.0
