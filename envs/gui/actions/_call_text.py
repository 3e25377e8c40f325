"""Calls written as text, like ``click('a51', button='right')``: names and literals, never run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.gui._errors import BadAction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["Called", "calls_in"]

_MAX_CHARS = 20_000


class Called(NamedTuple):
    """One call of a text."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def bind(self, *names: str, **defaults: Any) -> dict[str, Any]:
        """Return the arguments by name.

        Args:
            *names: required arguments, in order.
            **defaults: optional arguments, in order, with their defaults.

        Raises:
            BadAction: arguments are missing, unknown, repeated, or too many.
        """
        order = [*names, *defaults]
        if len(self.args) > len(order):
            raise BadAction(f"{self.name} takes at most {len(order)} arguments: {order}")
        given = dict(zip(order, self.args, strict=False))
        for name, value in self.kwargs.items():
            if name not in order or name in given:
                raise BadAction(f"{self.name} can't take {name!r} here; its arguments are {order}")
            given[name] = value
        if missing := [name for name in names if name not in given]:
            raise BadAction(f"{self.name} needs {', '.join(missing)}")
        return {**defaults, **given}


def calls_in(text: str, modules: Collection[str] = ()) -> Sequence[Called]:
    """Return the calls of a text, one or more, in order.

    Args:
        text: Python calls, which are parsed and never executed.
        modules: names that calls must be prefixed with (``pyautogui.click(1, 2)``); their imports
            are skipped. Plain calls if empty.

    Raises:
        BadAction: it is not a sequence of calls with literal arguments.
    """
    if len(text) > _MAX_CHARS:
        raise BadAction(f"an action of {len(text)} characters is too long")
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadAction(
            f"not an action: {text.strip()[:80]!r}; write a call like click('12')"
        ) from error
    if not body:
        raise BadAction("there is no action; write a call like click('12')")
    return [_call(statement, modules) for statement in body if not _imports(statement, modules)]


def _imports(statement: ast.stmt, modules: Collection[str]) -> bool:
    return isinstance(statement, ast.Import) and all(
        one.name in modules and one.asname is None for one in statement.names
    )


def _call(statement: ast.stmt, modules: Collection[str]) -> Called:
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = _name(call.func, modules) if isinstance(call, ast.Call) else None
    if not isinstance(call, ast.Call) or name is None:
        raise BadAction(f"not an action: {ast.unparse(statement)[:80]!r}; write plain calls only")
    try:
        args = tuple(ast.literal_eval(arg) for arg in call.args)
        kwargs = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadAction(f"{name}: arguments must be literals") from error
    if len(kwargs) < len(call.keywords):
        raise BadAction(f"{name}: `**` is not allowed")
    return Called(name, args, kwargs)


def _name(function: ast.expr, modules: Collection[str]) -> str | None:
    """Return the name of a called function; None if it is not one that may be called."""
    if isinstance(function, ast.Name):
        return None if modules else function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        known = function.value.id in modules
        return f"{function.value.id}.{function.attr}" if known else None
    return None
