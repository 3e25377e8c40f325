"""Moved names: importing one from its old place works for one version, with a warning."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["moved_names"]


def moved_names(module: str, *places: str, **renamed: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` for names that have moved.

    ::

        if not TYPE_CHECKING:  # type checkers report the old names
            __getattr__ = moved_names(__name__, "trajgym.rollout.engines", Old="package.module:New")

    Args:
        module: the module that the names were imported from.
        *places: modules whose public names were available there.
        **renamed: ``module:name`` by old name.

    Returns:
        A function that returns the value with a ``DeprecationWarning``, and raises
        ``AttributeError`` for any other name.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the module's
        place, _, new = renamed.get(name, "").partition(":")
        if not place and not name.startswith("_"):
            new = name
            place = next((p for p in places if name in importlib.import_module(p).__all__), "")
        if not place:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} has moved: import {new} from {place}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(place), new)

    return __getattr__
