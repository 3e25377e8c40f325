"""Twins of tests: the same file, names and lines, but each test fails.

One test run in which code under test shares a process with pytest is not sufficient. Code that
rewrites reports makes a twin pass as well, and a passing twin is tampering. Code under test must
not be able to distinguish a twin from a test that fails honestly: a twin differs as little as
possible, and in a way that a real test could be written, in one constant that a result is compared
with, one comparison, or one expected exception, chosen at random. Every line keeps its number.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import re
from itertools import chain
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterator, Sequence

__all__ = ["TwinFile", "twin_of"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Edit: TypeAlias = tuple[int, int, bytes]
"""Start, end and replacement, in bytes of the file."""

_OPPOSITE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_METHODS = {
    "assertEqual": "assertNotEqual",
    "assertEquals": "assertNotEqual",
    "assertTrue": "assertFalse",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIn": "assertNotIn",
    "assertIsInstance": "assertNotIsInstance",
    "assertAlmostEqual": "assertNotAlmostEqual",
    "assertRegex": "assertNotRegex",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
}
_METHODS |= {other: name for name, other in _METHODS.items() if name != "assertEquals"}
_EQUAL_METHODS = {
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual",
    "assertSetEqual", "assertSequenceEqual", "assertCountEqual", "assertMultiLineEqual",
}  # fmt: skip
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
_OTHERS = ("KeyError", "ZeroDivisionError", "AttributeError", "UnicodeDecodeError", "BufferError")
_BACKSLASH = ord("\\")
_LITERAL = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load,
)  # fmt: skip


class TwinFile(NamedTuple):
    """A test file's twin.

    Attributes:
        content: the file; it has as many lines as the original.
        tests: the ids, without parameters, of the tests that must fail in it.
    """

    content: bytes
    tests: frozenset[str]


def twin_of(file: str, source: bytes, tests: Collection[str], chance: random.Random) -> TwinFile:
    """Return the twin of a file.

    Args:
        file: its path; only the name counts.
        source: its content: Python, or text with doctests.
        tests: ids of the tests below the file, as ``Class::method`` or ``function``, without
            parameters.
        chance: random generator that chooses which statement of a test is changed, and how.

    A test that is not defined in the file (inherited from another module, generated in a loop) has
    no twin and is missing in the result.
    """
    try:
        source.decode()  # columns of the syntax tree are UTF-8 bytes
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _doctest_twin(file, source, tests)
    text = _Text(source)
    edits: dict[_Function, _Edit | None] = {}  # several tests can share one method
    made = set()
    for test in sorted(tests):
        functions = _definitions(tree, test.split("::"))
        for function in functions:
            if function not in edits:
                edits[function] = _failing(function, text, chance)
        if functions and all(edits[function] for function in functions):
            made.add(test)
    changed = _applied(source, [edit for edit in edits.values() if edit])
    try:
        ast.parse(changed)
    except (SyntaxError, ValueError):  # an edit that gives invalid syntax
        return TwinFile(source, frozenset())
    rest = _doctest_twin(file, changed, [test for test in tests if test not in made])
    return TwinFile(rest.content, frozenset(made) | rest.tests)


class _Text:
    """Converts lines and columns of a file's syntax tree to byte offsets."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._starts = [0]
        for line in re.split(rb"(?<=\n)|(?<=\r)(?!\n)", source):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset


def _definitions(tree: ast.Module, path: Sequence[str]) -> list[_Function]:
    """Return the functions that a test's id may mean; a method may be in any class of the file."""
    scope: ast.Module | ast.ClassDef | None = tree
    for name in path[:-1]:
        found = [n for n in ast.walk(scope or tree) if isinstance(n, ast.ClassDef)]
        scope = next((n for n in found if n.name == name), None)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    if scope is not None:
        own = [n for n in _unnested(scope.body) if isinstance(n, functions) and n.name == path[-1]]
        if own or len(path) == 1:
            return own
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [
        node
        for holder in classes
        for node in holder.body
        if isinstance(node, functions) and node.name == path[-1]
    ]


def _unnested(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those under ``if`` and ``try`` (versions, optional imports)."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try)):
            for part in (statement.body, statement.orelse, getattr(statement, "finalbody", [])):
                yield from _unnested(part)
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _unnested(handler.body)


def _failing(function: _Function, text: _Text, chance: random.Random) -> _Edit | None:
    """Return an edit that makes a test fail."""
    certain, nested = _checks(function.body)
    for statements in (certain, nested):
        for statement in chance.sample(statements, len(statements)):
            if edit := _contradicted(statement, text, chance):
                return edit
    return _ended(function.body, text)


def _checks(body: Sequence[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements that check something: those that always run, and those that may."""
    certain: list[ast.stmt] = []
    nested: list[ast.stmt] = []
    found = certain
    for statement in body:
        inner: tuple[list[ast.stmt], list[ast.stmt]] = ([statement], [])
        if isinstance(statement, (ast.With, ast.AsyncWith)) and _raises_of(statement) is None:
            inner = _checks(statement.body)
        elif isinstance(statement, (ast.For, ast.AsyncFor, ast.While, ast.If)):
            inner = ([], list(chain(*_checks(statement.body))))
        found += inner[0]
        nested += inner[1]
        if any(isinstance(part, (ast.Return, ast.Raise)) for part in ast.walk(statement)):
            found = nested  # what follows may never run
    return certain, nested


def _contradicted(statement: ast.stmt, text: _Text, chance: random.Random) -> _Edit | None:
    """Return an edit that makes a passing check fail; None if the statement checks nothing."""
    if isinstance(statement, ast.Assert):
        return _negated(statement.test, text, chance)
    call = _raises_of(statement)
    if call is not None:
        return _other_exception(call, text, chance)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _other_method(statement.value, text, chance)
    return None


def _negated(test: ast.expr, text: _Text, chance: random.Random) -> _Edit:
    start, end = text.start(test), text.end(test)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Eq):
            literals = [side for side in (right, left) if _is_literal(side)]
            if literals and (edit := _other_constant(literals[0], text, chance)):
                return edit
        word, opposite = _OPPOSITE[type(test.ops[0])]
        gap = text.source[text.end(left) : text.start(right)]
        pattern = rb"\s+".join(re.escape(part.encode()) for part in word.split())
        if len(found := list(re.finditer(pattern, gap))) == 1:
            at = text.end(left)
            return at + found[0].start(), at + found[0].end(), opposite.encode()
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        after = text.source[start + len(b"not") : end]
        return start, end, after.lstrip(b" ")
    simple = isinstance(test, (ast.Call, ast.Name, ast.Attribute, ast.Subscript))
    inner = text.source[start:end]
    return start, end, b"not " + inner if simple else b"not (" + inner + b")"


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        return name == "approx" and bool(node.args) and _is_literal(node.args[0])
    return all(isinstance(part, _LITERAL) for part in ast.walk(node))


def _other_constant(node: ast.expr, text: _Text, chance: random.Random) -> _Edit | None:
    """Return an edit that changes a literal to another value of the same type."""
    inside = node.args[0] if isinstance(node, ast.Call) else node
    constants = [part for part in ast.walk(inside) if isinstance(part, ast.Constant)]
    for constant in chance.sample(constants, len(constants)):
        start, end = text.start(constant), text.end(constant)
        old, token = constant.value, text.source[start:end]
        for new in _variants(old, token, chance):
            try:
                value = ast.literal_eval(new.decode())
            except (SyntaxError, ValueError):
                continue
            if type(value) is type(old) and value != old and new.count(b"\n") == token.count(b"\n"):
                return start, end, new
    return None


def _variants(old: object, token: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield candidate tokens for another value."""
    if isinstance(old, bool):
        yield repr(not old).encode()
    elif isinstance(old, (int, float)):
        yield repr(old + chance.choice((1, 2, 3))).encode()
    elif isinstance(old, (str, bytes)):
        # Other letters: a comparison that ignores case, width or blanks must fail as well.
        first = token.find(token[-1:]) + 1
        places = range(first, len(token) - 1)
        letters = [p for p in places if token[p : p + 1].isalnum() and token[p - 1] != _BACKSLASH]
        for at in chance.sample(letters, min(8, len(letters))):
            pool = b"0123456789" if token[at : at + 1].isdigit() else b"abcdefghijklmnoprstuw"
            others = bytes(c for c in pool if bytes([c]).lower() != token[at : at + 1].lower())
            yield token[:at] + bytes([chance.choice(others)]) + token[at + 1 :]
        if not old:
            yield token[:first] + bytes([chance.choice(b"abcdefgh")]) + token[first:]


def _raises_of(statement: ast.stmt) -> ast.Call | None:
    """Return the call of ``with pytest.raises(...)`` or ``with self.assertRaises(...)``."""
    if not isinstance(statement, (ast.With, ast.AsyncWith)):
        return None
    for item in statement.items:
        if isinstance(item.context_expr, ast.Call) and _called(item.context_expr) in _RAISES:
            return item.context_expr
    return None


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _other_exception(call: ast.Call, text: _Text, chance: random.Random) -> _Edit | None:
    if not call.args:
        return None
    expected = call.args[0]
    names = {node.id for node in ast.walk(expected) if isinstance(node, ast.Name)}
    known = [kind for name in names if isinstance(kind := getattr(builtins, name, None), type)]
    others = [
        name
        for name in _OTHERS
        if not any(
            issubclass(getattr(builtins, name), kind) or issubclass(kind, getattr(builtins, name))
            for kind in known
        )
    ]
    if not others:  # it accepts any exception
        return None
    return text.start(expected), text.end(expected), chance.choice(others).encode()


def _other_method(call: ast.Call, text: _Text, chance: random.Random) -> _Edit | None:
    """Return an edit of a check of :class:`unittest.TestCase`, or of a call of ``raises``."""
    name = _called(call)
    if name in _RAISES:
        return _other_exception(call, text, chance)
    if name in _EQUAL_METHODS:
        literals = [side for side in call.args[1::-1] if _is_literal(side)]
        if literals and (edit := _other_constant(literals[0], text, chance)):
            return edit
    if name not in _METHODS or not isinstance(call.func, ast.Attribute):
        return None
    end = text.end(call.func)
    return end - len(name), end, _METHODS[name].encode()


def _ended(body: Sequence[ast.stmt], text: _Text) -> _Edit | None:
    """Return an edit that fails at the start of a test, for tests without explicit checks."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            continue
        if isinstance(statement, ast.Try):
            return _ended(statement.finalbody or statement.body, text)
        if expression := _first_expression(statement):
            start, end = text.start(expression), text.end(expression)
            return start, end, b"[" + text.source[start:end] + b"][1]"
        if not isinstance(statement, (ast.With, ast.AsyncWith, ast.Match)):
            is_doc = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_doc and statement is body[0] and len(body) > 1:
                continue
            start = text.start(statement)
            return start, start, b"assert not 1; "
    return None


def _first_expression(statement: ast.stmt) -> ast.expr | None:
    """Return the expression that a compound statement evaluates first."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return statement.iter
    if isinstance(statement, (ast.If, ast.While)):
        return statement.test
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return statement.items[0].context_expr
    return statement.subject if isinstance(statement, ast.Match) else None


def _applied(source: bytes, edits: Sequence[_Edit]) -> bytes:
    changed = source
    for start, end, new in sorted(edits, reverse=True):
        changed = changed[:start] + new + changed[end:]
    return changed


def _doctest_twin(file: str, source: bytes, tests: Collection[str]) -> TwinFile:
    """Return a file in which the first output that every doctest expects is changed.

    Pytest names a doctest after its text file, or after the module or object whose docstring it is.
    """
    module = PurePosixPath(file).stem
    named = frozenset(test for test in tests if "." in test or test == module)
    if not named:
        return TwinFile(source, frozenset())
    lines = source.split(b"\n")
    try:
        examples = doctest.DocTestParser().get_examples(source.decode())
    except (ValueError, UnicodeDecodeError):
        return TwinFile(source, frozenset())
    changed = False
    for example in examples:
        at = example.lineno + example.source.count("\n")
        if example.want and at < len(lines) and lines[at].strip():
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            lines[at] = indent + b"no " + lines[at].lstrip()
            changed = True
    return TwinFile(b"\n".join(lines), named if changed else frozenset())
