"""Statistics of groups, in float64, and exact if all members are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Ints, TurnTable

__all__ = ["PAPER", "VERL", "Convention", "group_moments", "group_relative", "grouped_attempts"]


class Convention(NamedTuple):
    """How values are normalised within a group: ``(value - mean) / (std + eps)``."""

    ddof: int = 0
    """0 for the population std, 1 for the sample std."""
    eps: float = 0.0
    divide: bool = True
    """Whether to divide by the std."""
    raw_single: bool = False
    """Whether a group of one keeps its raw value (as if mean 0 and std 1) instead of giving 0."""


PAPER = Convention()
VERL = Convention(ddof=1, eps=1e-6, raw_single=True)


class Moments(NamedTuple):
    """Statistics of each value's group, one entry per value."""

    mean: Doubles
    std: Doubles
    size: Ints


def group_moments(values: Doubles, groups: Ints, ddof: int = 0) -> Moments:
    """Return mean, std and size of the group that each value belongs to.

    If all values of a group are equal, its mean is exactly that value and its std exactly 0. This
    is tested, not computed, because the mean of equal numbers can differ by rounding. The result
    does not depend on the order of the values, not even in the last bit.

    Args:
        values: float64 ``[n]``, finite.
        groups: int64 ``[n]``, the label of the group, 0 or more.
        ddof: see `Convention`; a group of one has a std of 0 with either.
    """
    if values.size == 0:
        return Moments(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    # Summing in sorted order makes the sums independent of the order of the sessions.
    order = _order(values, groups)
    ordered, keys = values[order], groups[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    size = np.diff(np.r_[first, keys.size])
    mean = np.add.reduceat(ordered, first) / size
    equal = ordered[first] == ordered[first + size - 1]
    mean[equal] = ordered[first][equal]
    spread = np.add.reduceat((ordered - np.repeat(mean, size)) ** 2, first)
    std = np.sqrt(spread / np.maximum(size - ddof, 1))
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.repeat(np.arange(first.size), size)
    return Moments(mean[place], std[place], size[place])


def _order(values: Doubles, groups: Ints) -> Ints:
    """Return the order by group, then value; equal values in any order."""
    n = values.size
    if int(groups.max()) >= 2**62 // n:
        return np.lexsort((values, groups))
    # Two sorts of plain numbers are about twice as fast as a sort by two keys.
    by_value = np.argsort(values)
    both = np.sort(groups[by_value] * n + np.arange(n))
    order: Ints = by_value[both % n]
    return order


def group_relative(values: Doubles, groups: Ints, convention: Convention) -> Doubles:
    """Return float64 ``[n]``: each value relative to its group; exactly 0 where all are equal."""
    mean, std, size = group_moments(values, groups, convention.ddof)
    result = values - mean
    if convention.divide:
        scale = std + convention.eps
        result = np.divide(result, scale, out=np.zeros_like(result), where=std > 0)
    if convention.raw_single:
        one = 1.0 + convention.eps if convention.divide else 1.0
        result = np.where(size == 1, values / one, result)
    return result


def grouped_attempts(table: TurnTable) -> tuple[Ints, Ints]:
    """Return the indices of the scored attempts, and the group of each.

    Raises:
        InvalidInput: a scored attempt belongs to none of the table's groups.
    """
    counted = np.flatnonzero(table.attempt_scored)
    groups = table.attempt_group[counted]
    if (groups < 0).any():
        stray = table.attempt_session[counted[int(np.argmax(groups < 0))]]
        raise InvalidInput(
            f"session {table.sessions[stray]} belongs to none of the given groups: a "
            "group-relative advantage needs its group",
        )
    return counted, groups
