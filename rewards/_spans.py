"""Nesting of spans within a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trajgym.rewards._table import Flags, TurnTable

__all__ = ["outermost"]


def outermost(table: TurnTable, chosen: Flags | None = None) -> Flags:
    """Return bool ``[K]``: spans that are not inside another one.

    Args:
        table: the spans.
        chosen: bool ``[K]``, the spans to consider; the others are ignored, and False in the
            result. None considers all.
    """
    picked = np.flatnonzero(np.ones(table.span_turn.size, np.bool_) if chosen is None else chosen)
    turn, end = table.span_turn[picked], table.span_end[picked]
    order = np.lexsort((-end, table.span_start[picked], turn))
    width = int(end.max(initial=0)) + 1
    reach = turn[order] * width + end[order]
    covered = np.zeros(picked.size, dtype=np.bool_)
    if picked.size:
        covered[order[1:]] = reach[1:] <= np.maximum.accumulate(reach)[:-1]
    found = np.zeros(table.span_turn.size, dtype=np.bool_)
    found[picked] = ~covered
    return found
