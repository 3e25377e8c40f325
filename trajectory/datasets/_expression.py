"""Expressions over fields, such as ``passed and turns < 20``, in a subset of Python's syntax."""

from __future__ import annotations

import ast
import difflib
import operator
from typing import TYPE_CHECKING, Any

from trajgym.trajectory._errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["Expression"]

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LONGEST = 10_000
"""Longest expression (characters)."""


class Expression:
    """An expression over named fields; it is parsed, and never executed as Python code.

    It has names of fields, constants, lists of them, ``and``, ``or``, ``not``, comparisons
    (``==``, ``<``, ``in`` and so on), arithmetic on numbers, ``len(...)``, and parts of fields as
    ``data.level`` or ``data["level"]``. A part that a field does not have is None. None is equal
    to None only, and not less or greater than anything.

    Args:
        text: the expression.
        fields: names that it may use.

    Raises:
        InvalidInput: it is not such an expression, or names an unknown field.
    """

    def __init__(self, text: str, fields: Collection[str]) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise InvalidInput(f"expression of {len(text)} characters; at most {_LONGEST}")
        try:
            self._body = ast.parse(text.strip(), mode="eval").body
            _check(self._body)
        except _Refused as error:
            raise InvalidInput(f"expression {text!r}: {error}") from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidInput(f"expression {text!r} can't be parsed: {error}") from error
        named = [node for node in ast.walk(self._body) if isinstance(node, ast.Name)]
        self.names = frozenset(node.id for node in named) - {"len"}
        """The fields that it uses."""
        for name in sorted(self.names - set(fields)):
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            known = ", ".join(sorted(fields))
            raise InvalidInput(f"expression {text!r}: no field {name!r}; {hint}fields: {known}")

    def __call__(self, record: Mapping[str, Any]) -> Any:
        """Return the value for a record.

        Raises:
            InvalidInput: its types don't fit, or it divides by zero.
        """
        try:
            return _value(self._body, record)
        except (TypeError, ArithmeticError) as error:
            raise InvalidInput(f"expression {self.text!r}: {error}") from error


class _Refused(Exception):
    """A construct that expressions don't have."""


def _check(node: ast.expr) -> None:
    """Raise for anything that :func:`_value` does not evaluate."""
    match node:
        case ast.Name() | ast.Constant(value=None | bool() | int() | float() | str()):
            inner: list[ast.expr] = []
        case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.Set(elts=inner):
            pass
        case ast.BoolOp(values=inner):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            inner = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            inner = [left, right]
        case ast.Compare(left=left, comparators=others):
            inner = [left, *others]
        case ast.Attribute(value=value):
            inner = [value]
        case ast.Subscript(value=value, slice=ast.Constant() as part):
            inner = [value, part]
        case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
            inner = [argument]
        case _:
            raise _Refused(f"{ast.unparse(node)!r} is not part of the syntax")
    for one in inner:
        _check(one)


def _value(node: ast.expr, record: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return record[name]
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item, record) for item in items]
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(one, record) for one in values)
        case ast.BoolOp(values=values):
            return any(_value(one, record) for one in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, record)
        case ast.UnaryOp(operand=operand):
            number = _value(operand, record)
            return None if number is None else -number
        case ast.BinOp(left=left, op=op, right=right):
            return _calculate(type(op), _value(left, record), _value(right, record))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compare([left, *others], ops, record)
        case ast.Attribute(value=whole, attr=name):
            return _part(_value(whole, record), name)
        case ast.Subscript(value=whole, slice=ast.Constant(value=key)):
            return _part(_value(whole, record), key)
        case ast.Call(args=[argument]):
            found = _value(argument, record)
            return None if found is None else len(found)
    raise AssertionError(node)  # _check has refused it


def _compare(nodes: list[ast.expr], ops: list[ast.cmpop], record: Mapping[str, Any]) -> bool:
    left = _value(nodes[0], record)
    for op, node in zip(ops, nodes[1:], strict=True):
        right = _value(node, record)
        if not _holds(op, left, right):
            return False
        left = right
    return True


def _holds(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.Eq | ast.Is):
        return bool(left == right)
    if isinstance(op, ast.NotEq | ast.IsNot):
        return bool(left != right)
    if isinstance(op, ast.In | ast.NotIn):
        inside = right is not None and left in right
        return inside if isinstance(op, ast.In) else not inside
    if left is None or right is None:
        return False
    return _ORDER[type(op)](left, right)


def _calculate(op: type[ast.operator], left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    for side in (left, right):
        if not isinstance(side, int | float):
            raise TypeError(f"arithmetic needs numbers, not {type(side).__name__}")
    return _ARITHMETIC[op](left, right)


def _part(whole: Any, key: Any) -> Any:
    if isinstance(whole, dict):
        return whole.get(key)
    if isinstance(whole, list) and isinstance(key, int):
        return whole[key] if -len(whole) <= key < len(whole) else None
    return None
