"""Validating what environments return, and converting it to plain values for the record."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Rational
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs._errors import EnvironmentFault
from trajgym.envs._plain import plain_number, plain_text
from trajgym.envs._spawn import Spawn
from trajgym.envs._tools import Image, ToolResult
from trajgym.envs.faults import contained, describe
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

__all__ = [
    "as_facts",
    "as_flag",
    "as_number",
    "as_outcome",
    "as_result",
    "as_snapshot",
    "described",
    "shown",
]

_T = TypeVar("_T")

_DEPTH = 50
"""Maximum nesting of a signal's value; deeper ones are assumed to contain themselves."""
_FACTS = 1_000_000
"""Largest size in bytes of the signals of a result, and of an outcome's details: they are converted
and encoded on the event loop."""
_PARTS = 10_000
"""Largest number of texts and images in a result."""
_NAME = 100
"""Largest number of characters of a limit's name."""


def as_result(value: object, where: str) -> ToolResult:
    """Convert what a tool or ``respond()`` returned to a result with plain, finite values.

    Numbers of numpy, torch, ``decimal`` and ``fractions`` are converted to Python's, and instances
    of subclasses of ``str`` to ``str``, so that no method of a returned object is called later.

    Args:
        value: text or a :class:`ToolResult`.
        where: what returned it, for error messages.

    Raises:
        EnvironmentFault: the value has another type, or a part of it can't be recorded.
    """
    if type(value) is str:
        return ToolResult(content=value)
    return _converted(lambda: _result(value, where), where)


def _result(value: object, where: str) -> ToolResult:
    if isinstance(value, str):
        return ToolResult(content=plain_text(value))
    if not isinstance(value, ToolResult):
        raise _fault(where, f"returned {described(value)}; return text or ToolResult")
    if not isinstance(value.truncated, str):
        raise _fault(where, f"truncated is {_short(value.truncated)}; it must be a limit's name")
    if len(plain_text(value.truncated)) > _NAME:
        raise _fault(where, f"truncated has more than {_NAME} characters; give a limit's name")
    return ToolResult(
        content=_content(value.content, where),
        reward=None if value.reward is None else as_number(value.reward, f"{where}: reward"),
        done=as_flag(value.done, where),
        truncated=plain_text(value.truncated),
        signals=_facts(value.signals, f"{where}: signals", "env"),
        spawn=_spawn(value.spawn, where),
    )


def as_outcome(verdict: object) -> Outcome:
    """Convert what ``verify()`` returned to an outcome.

    A bool becomes 1.0 or 0.0; a number passes if it is at least 1.

    Raises:
        EnvironmentFault: it is not a number, a bool or an :class:`Outcome`, or a part of it is not
            finite or not a JSON value.
    """
    return _converted(lambda: _outcome(verdict), "verify()", "verify")


def _outcome(verdict: object) -> Outcome:
    where = "verify()"
    if isinstance(verdict, Outcome):
        return Outcome(
            score=as_number(verdict.score, f"{where}: score", "verify"),
            passed=as_flag(verdict.passed, where, "passed", "verify"),
            details=_facts(verdict.details, f"{where}: details", "verify"),
        )
    if isinstance(verdict, str) or (plain := plain_number(verdict)) is None:
        message = f"returned {described(verdict)}; return a float, a bool or an Outcome"
        raise _fault(where, message, "verify")
    score = as_number(plain, f"{where}: score", "verify")
    return Outcome(score=score, passed=score >= 1.0)


def as_snapshot(value: object) -> str | None:
    """Check what ``snapshot()`` returned: an id or None.

    Raises:
        EnvironmentFault: it is neither.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return plain_text(value)
    raise _fault("snapshot()", f"returned {described(value)}; return its id, or None")


def described(value: object) -> str:
    """Return what a value of a wrong type is, for an error message."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{name} (is an `await` missing?)" if inspect.isawaitable(value) else name


def shown(value: object) -> str:
    """Return what an argument of a wrong type is, with its article, for an error message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _converted(convert: Callable[[], _T], where: str, part: str = "env") -> _T:
    """Return what ``convert`` returns; it may call methods of objects that user code returned."""
    try:
        with contained():
            return convert()
    except EnvironmentFault:
        raise
    except Exception as error:
        # boundary: methods of user code's objects
        message = f"returned a value that can't be read: {describe(error)}"
        raise _fault(where, message, part) from error


def _spawn(value: object, where: str) -> Spawn | None:
    if value is None or (isinstance(value, Spawn) and where.startswith("tool ")):
        return value
    if isinstance(value, Spawn):
        raise _fault(where, "only a tool call can spawn a sub-agent")
    raise _fault(where, f"spawn is {type(value).__name__}; return a Spawn")


def _content(content: object, where: str) -> Any:
    if isinstance(content, str):
        return plain_text(content)
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise _fault(
            where, f"content is {type(content).__name__}; return text, or texts and Images"
        )
    if len(content) > _PARTS:
        raise _fault(where, f"content has {len(content):,} parts; return at most {_PARTS:,}")
    parts: list[str | Image] = []
    for part in content:
        if isinstance(part, Image):
            if not isinstance(part.data, bytes) or not isinstance(part.media_type, str):
                raise _fault(where, "an Image in content has data that is not bytes")
            parts.append(Image(part.data, plain_text(part.media_type)))
        elif isinstance(part, str):
            parts.append(plain_text(part))
        else:
            raise _fault(where, f"content contains {type(part).__name__}; return texts and Images")
    return parts


def as_number(value: Any, where: str, part: str = "env") -> float:
    if type(value) is float and math.isfinite(value):
        return value
    plain = plain_number(value)
    if plain is None:
        raise _fault(where, f"is {_short(value)}; it must be a number", part)
    number = _float(plain)
    if not math.isfinite(number):
        raise _fault(where, f"is {_short(value)}; it must be finite", part)
    return number


def _float(number: bool | float | Rational | Decimal) -> float:
    try:
        return float(number)
    except (OverflowError, ValueError):  # more than a float holds; Decimal's signalling NaN
        return math.nan


def as_flag(value: Any, where: str, name: str = "done", part: str = "env") -> bool:
    if value is False or value is True:
        return bool(value)
    plain = plain_number(value)
    if plain is None or not math.isfinite(_float(plain)) or plain not in (0, 1):
        raise _fault(where, f"{name} is {_short(value)}; it must be True or False", part)
    return bool(plain)


def as_facts(facts: Any, where: str, part: str) -> dict[str, Any]:
    return _converted(lambda: _facts(facts, where, part), where, part)


def _facts(facts: Any, where: str, part: str) -> dict[str, Any]:
    if not isinstance(facts, Mapping):
        raise _fault(where, f"is {type(facts).__name__}; it must be a dict", part)
    if any(not isinstance(key, str) for key in facts):
        raise _fault(where, "has a key that is not a string", part)
    read = _Json(part, where)
    return {
        plain_text(key): read.value(one, f"{where}[{_short(key)}]", 1) for key, one in facts.items()
    }


class _Json:
    """Converts the values of one dict to JSON values, up to a total size.

    Args:
        part: what failed if a value can't be recorded.
        where: what the dict is.
    """

    __slots__ = ("_left", "_part", "_where")

    def __init__(self, part: str, where: str) -> None:
        self._part = part
        self._where = where
        self._left = _FACTS

    def value(self, value: Any, where: str, depth: int) -> Any:
        """Return the plain form of a value at a place."""
        kind = type(value)
        self._left -= len(value) if kind is str else 8
        if self._left < 0:
            message = f"hold more than {_FACTS:,} bytes; return less, and large texts as content"
            raise _fault(self._where, message, self._part)
        if value is None or kind in {bool, int, str} or (kind is float and math.isfinite(value)):
            return value
        if depth > _DEPTH:
            raise _fault(where, f"is nested more than {_DEPTH} levels deep", self._part)
        if isinstance(value, Mapping):
            if any(not isinstance(key, str) for key in value):
                raise _fault(where, "has a key that is not a string", self._part)
            return {plain_text(k): self.value(v, where, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(one, where, depth + 1) for one in value]
        if isinstance(value, str):
            return self.value(plain_text(value), where, depth)
        if (plain := plain_number(value)) is not None:
            if isinstance(plain, bool):
                return plain
            return (
                int(plain) if isinstance(plain, Integral) else as_number(plain, where, self._part)
            )
        if callable(getattr(value, "tolist", None)):  # arrays of numpy and torch
            return self.value(value.tolist(), where, depth + 1)
        raise _fault(where, f"holds {type(value).__name__}; signals are JSON values", self._part)


def _short(value: object) -> str:
    try:
        with contained():
            text = plain_text(repr(value))
    except Exception:  # noqa: BLE001 - boundary: user code
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:100]}..."


def _fault(where: str, message: str, part: str = "env") -> EnvironmentFault:
    return EnvironmentFault(part, f"{where} {message}")
