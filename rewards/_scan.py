"""Backward recurrences over many sequences of different lengths at once."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Ints

__all__ = ["scan_back", "shift_back"]

_BLOCK = 1 << 14
"""Number of sequences that are scanned together; small enough for the CPU's cache."""
_FEW = 8
"""Below this many sequences, plain Python is faster than one numpy call per position."""


def scan_back(values: Doubles, decay: float | Doubles, starts: Ints) -> Doubles:
    """Return float64 ``[n]`` with ``out[t] = values[t] + decay * out[t + 1]`` in each sequence.

    Args:
        values: float64 ``[n]``, sequence after sequence.
        decay: a single value, or float64 ``[s]``, one per sequence.
        starts: int64 ``[s + 1]``, where each sequence starts; the last is ``n``.
    """
    out = np.array(values, dtype=np.float64)
    rates = np.broadcast_to(np.asarray(decay, dtype=np.float64), starts.size - 1)
    for first in range(0, rates.size, _BLOCK):
        block = slice(first, min(first + _BLOCK, rates.size))
        _scan_block(out, rates[block], starts[block.start : block.stop + 1])
    return out


def _scan_block(out: Doubles, rates: Doubles, starts: Ints) -> None:
    """Scan in place, from the ends of all sequences at once; sequences are sorted longest first."""
    sizes = np.diff(starts)
    order = np.argsort(-sizes, kind="stable")
    sizes, ends, rates = sizes[order], starts[1:][order], rates[order]
    live = int(np.count_nonzero(sizes))
    carry = np.zeros(live)
    step = 0
    while live > _FEW:
        at = ends[:live] - 1 - step
        carry = out[at] + rates[:live] * carry[:live]
        out[at] = carry
        step += 1
        live = int(np.searchsorted(-sizes[:live], -step, side="left"))
    for i in range(live):
        rest = slice(int(ends[i] - sizes[i]), int(ends[i]) - step)
        out[rest] = _scan_one(out[rest], float(rates[i]), float(carry[i]))


def _scan_one(values: Doubles, rate: float, carry: float) -> Doubles:
    backwards = values[::-1].tolist()
    found = accumulate(backwards, lambda later, value: value + rate * later, initial=carry)
    return np.array(list(found)[:0:-1], dtype=np.float64)


def shift_back(values: Doubles, starts: Ints, fill: float = 0.0) -> Doubles:
    """Return float64 ``[n]``: the value of the next position, ``fill`` at each sequence's end."""
    later = np.empty_like(values)
    later[:-1] = values[1:]
    ends = starts[1:][np.diff(starts) > 0] - 1
    later[ends] = fill
    return later
