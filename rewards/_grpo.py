"""Group-relative advantages of whole attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._stats import PAPER, VERL, Convention, group_relative, grouped_attempts
from trajgym.rewards._values import Advantages
from trajgym.trajectory import InvalidInput, Stamp

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Ints, Scope, TurnTable
    from trajgym.rewards._values import Rewards

__all__ = ["GRPO", "Variant", "group_advantages"]

Variant: TypeAlias = Literal["paper", "verl", "mean_only"]


_CONVENTIONS: dict[Variant, Convention] = {
    "paper": PAPER,
    "verl": VERL,
    "mean_only": Convention(divide=False),
}


class GRPO(Deriver):
    """An attempt's score relative to its group's mean, on every turn of the attempt.

    Every scored attempt is one sample of its group, also rival attempts of the same session;
    members that failed or left do not count. Turns shared by several attempts get the mean of their
    advantages. Statistics are float64; a group with equal scores gives exactly 0.

    Attributes:
        variant: ``paper`` (the default): (score - mean) / std with the population std (ddof 0; the
            paper does not specify it), and a group of one gives 0. ``verl``: the sample std
            (ddof 1) plus 1e-6, and a group of one keeps its raw score (divided by 1 + 1e-6).
            ``mean_only`` (Dr. GRPO): score - mean.
        eps: added to the std instead of the variant's own.
    """

    name = "grpo"
    depends_on: ClassVar[Scope] = "group"
    group_relative = True

    variant: Variant = "paper"
    eps: Annotated[float, Field(ge=0)] | None = None

    def derive(self, table: TurnTable) -> Advantages:
        """Return the advantage of each scored attempt on all of its turns.

        Raises:
            InvalidInput: a scored attempt belongs to none of the table's groups.
        """
        return Advantages(table, self._relative(table, table.attempt_score), self.stamp)

    def derive_from(self, rewards: Rewards) -> Advantages:
        """Return the advantages of the attempts' summed rewards instead of their scores.

        Raises:
            InvalidInput: there are rewards over spans, or a scored attempt has no group.
        """
        if rewards.spans is not None:
            raise InvalidInput("grpo takes rewards over turns, not over spans")
        table = rewards.table
        summed = table.total(rewards.values[table.member_turn])
        settings = self.stamp.settings | {"rewards": rewards.stamp._asdict()}
        return Advantages(table, self._relative(table, summed), Stamp(self.name, settings))

    def _relative(self, table: TurnTable, scores: Doubles) -> Doubles:
        counted, groups = grouped_attempts(table)
        values = np.zeros(scores.size)
        values[counted] = group_advantages(
            scores[counted], groups, variant=self.variant, eps=self.eps
        )
        return table.spread(values, self.prefix_rule)


def group_advantages(
    scores: Doubles, groups: Ints, *, variant: Variant = "paper", eps: float | None = None
) -> Doubles:
    """Return float64 ``[A]``: each score relative to the scores of its group.

    Args:
        scores: float64 ``[A]``, finite.
        groups: int64 ``[A]``, the group of each.
        variant: see `GRPO`.
        eps: added to the std instead of the variant's own.
    """
    convention = _CONVENTIONS[variant]
    if eps is not None:
        convention = convention._replace(eps=eps)
    return group_relative(scores, groups, convention)
