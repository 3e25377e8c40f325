"""What installed packages register as entry points; their metadata is read once."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["entry_points"]


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group.

    The metadata of all packages is read once, 20 ms for some two hundred, and again when
    ``sys.path`` or one of its directories has changed: what is installed meanwhile is found.
    """
    return _read(group, tuple((path, _changed(path)) for path in sys.path))


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
