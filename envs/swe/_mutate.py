"""Procedural bugs: small edits of source text at nodes of the syntax tree.

The text outside an edit keeps its comments and layout, so the fix is as small as the bug. Edits
are numbered by rule and place, so that a recipe can name one without containing source code.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.swe._errors import InvalidTask

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RULES", "Edit", "edits_of", "find_edit", "is_python"]

_SWAPPED = {
    "Add": ("+", "-"), "Sub": ("-", "+"), "Mult": ("*", "+"), "Div": ("/", "*"),
    "FloorDiv": ("//", "*"), "Mod": ("%", "*"), "LShift": ("<<", ">>"), "RShift": (">>", "<<"),
    "BitAnd": ("&", "|"), "BitOr": ("|", "&"),
}  # fmt: skip
_FLIPPED = {
    "Lt": ("<", "<="), "LtE": ("<=", "<"), "Gt": (">", ">="), "GtE": (">=", ">"),
    "Eq": ("==", "!="), "NotEq": ("!=", "=="), "Is": ("is", "is not"), "In": ("in", "not in"),
    "IsNot": (r"is\s+not", "is"), "NotIn": (r"not\s+in", "in"),
}  # fmt: skip


class Edit(NamedTuple):
    """One bug: bytes ``start`` to ``end`` of the file are replaced.

    ``line`` (from 1), ``column`` (bytes, from 0) and ``variant`` identify the syntax-tree node;
    several nodes may have the same start. ``scope`` is the function.
    """

    rule: str
    line: int
    column: int
    variant: int
    start: int
    end: int
    new: bytes
    scope: str

    def apply(self, source: bytes) -> bytes:
        """Return the file with the bug in it."""
        return source[: self.start] + self.new + source[self.end :]


def edits_of(source: bytes) -> list[Edit]:
    """Return every edit inside functions, in order of place; see :func:`is_python`.

    Raises:
        InvalidTask: the source is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InvalidTask(f"not Python source: {error}") from error
    text = _Text(source)
    found: list[Edit] = []
    seen: dict[tuple[str, int, int], int] = {}
    for scope, node in _nodes(tree):
        for rule, make in RULES.items():
            for start, end, new in make(node, text):
                place = (rule, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
                variant = seen[place] = seen.get(place, -1) + 1
                found.append(Edit(*place, variant, start, end, new.encode(), scope))
    return found


def find_edit(source: bytes, rule: str, line: int, column: int, variant: int) -> Edit:
    """Return the edit of that name.

    Raises:
        InvalidTask: there is none; the source is a different file, or the rules have changed.
    """
    for edit in edits_of(source):
        if edit[:4] == (rule, line, column, variant):
            return edit
    raise InvalidTask(f"no edit {rule!r} number {variant} at line {line}, column {column}")


class _Text:
    """Source bytes with the offset of every line."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.start(node) : self.end(node)].decode("utf-8", "replace")

    def between(self, left: ast.expr, right: ast.expr, symbol: str) -> tuple[int, int] | None:
        """Return the position of an operator between two operands; None if it is ambiguous."""
        gap = self.source[self.end(left) : self.start(right)].decode("utf-8", "replace")
        matches = list(re.finditer(symbol, gap))
        if len(matches) != 1 or "#" in gap or not gap.isascii():
            return None
        return self.end(left) + matches[0].start(), self.end(left) + matches[0].end()


def _nodes(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Return the nodes inside function bodies, with the function, without docstrings and hints."""
    stack: list[tuple[str, bool, ast.AST]] = [("", False, tree)]
    while stack:
        scope, inside, node = stack.pop()
        if inside:
            yield scope, node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope, inside = f"{scope}.{node.name}".lstrip("."), True
            children = list(node.body)
        elif isinstance(node, ast.ClassDef):
            scope, inside = f"{scope}.{node.name}".lstrip("."), False
        elif isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value else []
        if children and _is_text(children[0]):
            children = children[1:]
        stack.extend((scope, inside, child) for child in reversed(children))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_python(source: bytes) -> bool:
    """Return whether a source parses; some edits give invalid syntax."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _operators(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.BinOp) and (pair := _SWAPPED.get(type(node.op).__name__)):
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str | bytes):
            return  # formatting and concatenation of strings: the edit would only give a type error
        if place := text.between(node.left, node.right, re.escape(pair[0])):
            yield *place, pair[1]


def _comparisons(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
        symbol, new = _FLIPPED[type(operator).__name__]
        word = rf"\b{symbol}\b" if symbol[0].isalpha() else re.escape(symbol)
        if place := text.between(left, right, word):
            yield *place, new


def _booleans(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            if place := text.between(left, right, rf"\b{old}\b"):
                yield *place, new


def _conditions(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Negate a condition."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield text.start(test), text.start(test.operand), ""
        elif isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            yield text.start(test), text.start(test), "not "


def _off_by_one(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, ast.Constant) and type(node.value) is int and text.of(node).isdigit():
        yield text.start(node), text.end(node), str(node.value + 1)
        if node.value > 0:
            yield text.start(node), text.end(node), str(node.value - 1)


def _constants(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Replace a bool, None or an empty string by a wrong constant."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield text.start(node), text.end(node), str(not node.value)
    elif node.value is None and text.of(node) == "None":
        yield text.start(node), text.end(node), "False"
    elif isinstance(node.value, str) and text.of(node) in {'""', "''"}:
        yield text.start(node), text.end(node), '" "'


def _branches(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Remove the body of a branch, or a break or continue."""
    if isinstance(node, ast.If):
        for body in (node.body, node.orelse):
            if body and not isinstance(body[0], ast.If | ast.Pass):
                yield text.start(body[0]), text.end(body[-1]), "pass"
    elif isinstance(node, ast.Break | ast.Continue):
        yield text.start(node), text.end(node), "pass"


def _arguments(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Swap two adjacent positional arguments."""
    if not isinstance(node, ast.Call):
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        if isinstance(left, ast.Starred) or isinstance(right, ast.Starred):
            return
        one, two = text.of(left), text.of(right)
        between = text.source[text.end(left) : text.start(right)].decode("utf-8", "replace")
        if one != two and between.strip() == ",":
            yield text.start(left), text.end(right), two + between + one


def _exceptions(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Suppress an exception where it is raised, or where it is caught and raised again."""
    if isinstance(node, ast.Raise):
        yield text.start(node), text.end(node), "pass"
    elif isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Pass | ast.Raise):
        yield text.start(node.body[0]), text.end(node.body[-1]), "pass"


def _returns(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Return nothing."""
    if isinstance(node, ast.Return) and node.value and text.of(node.value) != "None":
        yield text.start(node.value), text.end(node.value), "None"


def _assignments(node: ast.AST, text: _Text) -> Iterator[tuple[int, int, str]]:
    """Remove an assignment in place, or of an attribute."""
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    ):
        yield text.start(node), text.end(node), "pass"


RULES = {
    "operator": _operators,
    "comparison": _comparisons,
    "boolean": _booleans,
    "condition": _conditions,
    "off-by-one": _off_by_one,
    "constant": _constants,
    "branch": _branches,
    "arguments": _arguments,
    "exception": _exceptions,
    "return": _returns,
    "assignment": _assignments,
}
"""Every kind of bug: a function from node and text to the replacements."""
