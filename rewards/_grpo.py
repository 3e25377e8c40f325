"""Group-relative advantages of whole attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._values import Advantages
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Ints, TurnTable

__all__ = ["GRPO", "Variant", "group_advantages"]

Variant: TypeAlias = Literal["paper", "verl", "mean_only"]


class _Convention(NamedTuple):
    ddof: int
    eps: float
    divide: bool
    raw_single: bool


_CONVENTIONS: dict[Variant, _Convention] = {
    "paper": _Convention(ddof=0, eps=0.0, divide=True, raw_single=False),
    "verl": _Convention(ddof=1, eps=1e-6, divide=True, raw_single=True),
    "mean_only": _Convention(ddof=0, eps=0.0, divide=False, raw_single=False),
}


class GRPO(Deriver):
    """How far an attempt's score lies from its group's mean, on every turn of the attempt.

    Every scored attempt is one sample of its group, rival attempts of one session too; members
    that failed or left do not count. Turns that attempts share have the mean of their advantages.
    Statistics are float64; a group with equal scores gives exactly 0.

    Attributes:
        variant: ``paper`` (the default): (score - mean) / std, where the std is that of the group
            itself (ddof 0; the paper does not say which) and a group of one gives 0. ``verl``:
            the sample std (ddof 1) plus 1e-6, and a group of one keeps its raw score (over
            1 + 1e-6). ``mean_only`` (Dr. GRPO): score - mean, not divided.
        eps: added to the std instead of the variant's own.
    """

    name = "grpo"
    group_relative = True

    variant: Variant = "paper"
    eps: Annotated[float, Field(ge=0)] | None = None

    def derive(self, table: TurnTable) -> Advantages:
        """Return the advantage of each scored attempt on all of its turns.

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
        values = np.zeros(table.attempt_score.size)
        values[counted] = group_advantages(
            table.attempt_score[counted], groups, variant=self.variant, eps=self.eps
        )
        return Advantages(table, table.spread(values, self.prefix_rule), self.stamp)


def group_advantages(
    scores: Doubles, groups: Ints, *, variant: Variant = "paper", eps: float | None = None
) -> Doubles:
    """Return float64 ``[A]``: each score relative to the scores of its group.

    Args:
        scores: float64 ``[A]``, finite.
        groups: int64 ``[A]``, which group each belongs to.
        variant: see `GRPO`.
        eps: added to the std instead of the variant's own.
    """
    convention = _CONVENTIONS[variant]
    if scores.size == 0:
        return np.zeros(0)
    # Summing in order of the scores makes the sums independent of the order of the sessions.
    order = np.lexsort((scores, groups))
    ordered, keys = scores[order], groups[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    size = np.diff(np.r_[first, keys.size])
    centred = ordered - np.repeat(np.add.reduceat(ordered, first) / size, size)
    if convention.divide:
        spread = np.add.reduceat(centred**2, first) / np.maximum(size - convention.ddof, 1)
        scale = np.sqrt(spread) + (convention.eps if eps is None else eps)
    else:
        scale = np.ones(first.size)
    equal = ordered[first] == ordered[first + size - 1]
    result = centred / np.repeat(np.where(equal, 1.0, scale), size)
    # The mean of equal numbers can be one rounding step off: equality is tested, not computed.
    result[np.repeat(equal, size)] = 0.0
    if convention.raw_single:
        alone = first[size == 1]
        result[alone] = ordered[alone] / (1.0 + (convention.eps if eps is None else eps))
    advantages: Doubles = np.empty_like(result)
    advantages[order] = result
    return advantages
