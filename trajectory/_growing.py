"""Ids that grow at their end without being copied each time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory._tokens import IntArray

__all__ = ["append_ids", "same_start"]

_ROOM = 4096
"""Smallest number of ids that there is room for behind those that are copied to a new buffer."""
_lock = threading.Lock()


class _Buffer(np.ndarray[tuple[int], np.dtype[np.int32]]):
    """Memory whose first ``used`` ids are written, and never changed again."""

    used: int


def append_ids(ids: IntArray, new: IntArray | Sequence[int]) -> IntArray:
    """Return ``ids`` followed by ``new``, read-only, in time that does not depend on ``ids``.

    The result and ``ids`` share a buffer if ``ids`` is itself a result, and nothing was appended to
    it before; otherwise ``ids`` is copied to a new buffer, with room for half as many again.

    Args:
        ids: int32 ``[S]``.
        new: ``[N]`` ids.
    """
    added = np.asarray(new, dtype=np.int32)
    size = ids.size + added.size
    with _lock:
        buffer = _buffer_of(ids)
        if buffer is None or buffer.used != ids.size or buffer.size < size:
            buffer = _Buffer((size + max(size // 2, _ROOM),), np.int32)
            buffer[: ids.size] = ids
        buffer[ids.size : size] = added
        buffer.used = size
    grown: IntArray = np.ndarray((size,), np.int32, buffer)
    grown.flags.writeable = False
    return grown


def same_start(ids: IntArray, others: IntArray) -> bool:
    """Return whether both begin with the same ids because they share a buffer.

    False says nothing: the ids can be equal in different memory.
    """
    buffer = _buffer_of(ids)
    return buffer is not None and _buffer_of(others) is buffer


def _buffer_of(ids: IntArray) -> _Buffer | None:
    # The base of a part of a result is that result, so this array starts where the buffer does.
    return ids.base if type(ids.base) is _Buffer else None
