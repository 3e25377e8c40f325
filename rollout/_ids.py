"""Token ids: as plain lists, and finding parts of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory import IntArray

__all__ = ["as_list", "end_of_last"]

_WINDOW = 4096


def as_list(ids: IntArray | Iterable[int]) -> list[int]:
    """Return a new list of Python integers; for an array five times as fast as ``list``."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu":
        plain: list[int] = ids.tolist()
        return plain
    return list(map(int, ids))


def end_of_last(ids: IntArray, part: Sequence[int]) -> int:
    """Return the end of the last occurrence of ``part`` in ``ids``; 0 if there is none.

    Searched from the end, in windows, because a turn's beginning is near the end of its ids.
    """
    size, stop = len(part), len(ids)
    while size and stop >= size:
        first = max(0, stop - _WINDOW)
        window = ids[first:stop]
        starts = np.flatnonzero(window[: window.size - size + 1] == part[0])
        for start in starts[::-1].tolist():
            if window[start : start + size].tolist() == list(part):
                return int(first + start + size)
        stop = first + size - 1 if first else 0
    return 0
