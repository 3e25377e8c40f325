"""Fields of a request's JSON object; a malformed one is answered with status 400."""

from __future__ import annotations

import math
import re
from typing import Any

from trajgym.server._errors import Refused
from trajgym.server._json import dumps
from trajgym.trajectory import Task
from trajgym.trajectory._codec import decode

__all__ = [
    "check_session_id",
    "finite_field",
    "flag_field",
    "labels_of",
    "object_field",
    "read_task",
    "text_field",
    "whole_field",
]


_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_session_id(session_id: str) -> str:
    """Return a session's id if it can be part of a URL.

    Raises:
        Refused: 400.
    """
    if not _SESSION_ID.fullmatch(session_id):
        raise Refused(400, f"session id {session_id!r}: use letters, digits and ._-, up to 128")
    return session_id


def read_task(given: Any) -> Task:
    """Parse a task.

    Raises:
        InvalidInput: a field is missing or malformed.
    """
    return decode(Task, dumps(given))


def text_field(body: dict[str, Any], name: str) -> str | None:
    """Return a string, or None if it is left out or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name}: expected a string")
    return value


def whole_field(body: dict[str, Any], name: str) -> int | None:
    """Return an integer from 0 to 2**31-1, or None if it is left out or null."""
    value = body.get(name)
    if value is None:
        return None
    integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not integral or not 0 <= value < 2**31:
        raise Refused(400, f"{name}: expected an integer from 0 to 2**31-1")
    return int(value)


def flag_field(body: dict[str, Any], name: str, *, default: bool) -> bool:
    """Return true or false; the default if it is left out or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Refused(400, f"{name}: expected true or false")
    return value


def object_field(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object; an empty one if it is left out or null."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(400, f"{name}: expected an object")
    return value


def finite_field(body: Any, name: str) -> float:
    """Return a finite number, which is required."""
    value = body.get(name) if isinstance(body, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise Refused(400, f"{name}: expected a finite number")


def labels_of(value: Any) -> dict[str, str]:
    """Return an object of strings; an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise Refused(400, "labels: expected an object whose values are strings")
    return value
