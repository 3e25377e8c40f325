"""What installed packages register as entry points; their metadata is read once."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

from trajgym.trajectory._errors import InvalidInput, TrajgymError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["entry_points", "load_entry"]


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group.

    The metadata of all packages is read once, 20 ms for some two hundred, and again when
    ``sys.path`` or one of its directories has changed: what is installed meanwhile is found.
    """
    return _read(group, tuple((path, _changed(path)) for path in sys.path))


def load_entry(entry: EntryPoint) -> object:
    """Return the object that an entry point names, importing its module.

    Raises:
        InvalidInput: it can't be imported; the message names the entry point and its package's
            module. Errors of ours are raised as they are.
    """
    try:
        found: object = entry.load()
    except TrajgymError:
        raise
    except Exception as error:  # boundary: the module of another package
        kind = type(error).__name__
        raise InvalidInput(
            f"{entry.group}: {entry.name!r} ({entry.value}) can't be loaded: {kind}: {error}"
        ) from error
    return found


def _changed(path: str) -> int | None:
    """Return when a directory, or the archive at its place, was last changed."""
    try:
        return os.stat(path or ".").st_mtime_ns  # noqa: PTH116  # for each of them, at every call
    except OSError:
        return None


@functools.lru_cache(maxsize=16)
def _read(group: str, places: tuple[tuple[str, int | None], ...]) -> tuple[EntryPoint, ...]:
    from importlib import metadata

    del places  # what the answer depends on
    return tuple(metadata.entry_points(group=group))
