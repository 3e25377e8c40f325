"""JSON on the hot path: orjson where installed, else (and for what it rejects) the stdlib."""

from __future__ import annotations

import json
from typing import Any

orjson: Any
try:
    import orjson
except ImportError:
    orjson = None

__all__ = ["dumps", "loads"]


def loads(data: bytes | str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the data is not JSON.
    """
    if orjson is not None:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass  # the standard library accepts lone surrogates, NaN and long integers
    return json.loads(data)


def dumps(value: Any) -> bytes:
    """Return compact JSON as UTF-8; lone surrogates are escaped."""
    if orjson is not None:
        try:
            return bytes(orjson.dumps(value))
        except (TypeError, ValueError):
            pass
    return json.dumps(value, separators=(",", ":")).encode()
