"""Parses lists of test ids in every form in which data sets publish them."""

from __future__ import annotations

import ast
import json
from typing import Any

__all__ = ["strings_of"]


def strings_of(value: object) -> object:
    """Return a test list in any published form as a list of strings.

    Takes lists, tuples, sets and numpy arrays; mappings (their keys are the names); and strings
    that hold a JSON list or a Python literal. Anything else is returned as it is.

    Raises:
        ValueError: a string that is neither JSON nor a Python literal of a list.
    """
    if isinstance(value, str):
        value = _parsed(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return [str(key) for key in value]
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _parsed(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list | tuple | set | dict):
            return found
    raise ValueError(f"not a JSON list or Python list: {text[:60]!r}")
