"""Values from user code as plain ones, so that no method of a returned object is called later."""

from __future__ import annotations

from decimal import Decimal
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs.faults import contained, describe
from trajgym.trajectory import InvalidInput, check_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.trajectory import Message

__all__ = ["plain_message", "plain_number", "plain_text", "plain_values", "readable"]

_T = TypeVar("_T")
_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain_message(message: object, where: str, *, role: str | None = None) -> Message:
    """Return a chat message whose strings, lists and dicts are no instances of subclasses.

    A message that is plain already is returned as it is.

    Args:
        message: the value to check.
        where: what returned it, for error messages.
        role: the only accepted role; None accepts any.

    Raises:
        InvalidInput: it is not a chat message, or reading it raised an exception.
    """
    return readable(lambda: check_message(plain_values(message), where, role=role), where)


def plain_number(value: Any) -> bool | int | float | Rational | Decimal | None:
    """Convert a number to one of Python's types; None if it is not a number."""
    if isinstance(value, (bool, int, float, Decimal, Rational)):
        return value
    if isinstance(value, str):
        return None
    # Scalars and one-element arrays of numpy, torch and similar libraries.
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        found = item()
        return found if isinstance(found, (bool, int, float)) else None
    return float(value) if isinstance(value, Real) else None


def plain_text(value: str) -> str:
    """Return a plain string, whatever methods a subclass overrides."""
    return value if type(value) is str else str.__str__(value)


def readable(read: Callable[[], _T], where: str) -> _T:
    """Return what ``read`` returns; it may call methods of objects that user code returned.

    Raises:
        InvalidInput: it raised an exception; an ``InvalidInput`` is not changed.
    """
    try:
        with contained():
            return read()
    except InvalidInput:
        raise
    except Exception as error:
        # boundary: methods of user code's objects
        raise InvalidInput(f"{where} can't be read: {describe(error)}") from error


def plain_values(value: Any) -> Any:
    """Return JSON values without instances of subclasses; the same object if there are none."""
    return value if _are_plain(value) else _converted(value)


def _are_plain(value: Any) -> bool:
    """Return whether values contain no instance of a subclass, as most do, and nothing but JSON."""
    kind = type(value)
    if kind is dict:
        for key, one in value.items():
            if type(key) is not str or not (type(one) is str or _are_plain(one)):
                return False
        return True
    return all(map(_are_plain, value)) if kind is list else kind in _PLAIN


def _converted(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        pairs = [(key, one, _converted(key), _converted(one)) for key, one in dict.items(value)]
        if kind is dict and all(k is key and v is one for key, one, k, v in pairs):
            return value
        return {key: one for _, _, key, one in pairs}
    if isinstance(value, list):
        items = [(one, _converted(one)) for one in list.__iter__(value)]
        if kind is list and all(plain is one for one, plain in items):
            return value
        return [plain for _, plain in items]
    return value
