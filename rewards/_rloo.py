"""RLOO: each attempt relative to the mean of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._stats import group_moments, grouped_attempts
from trajgym.rewards._values import Advantages

if TYPE_CHECKING:
    from trajgym.rewards._table import Scope, TurnTable

__all__ = ["RLOO"]


class RLOO(Deriver):
    """An attempt's score minus the mean of its group's other attempts (arXiv 2402.14740).

    Turns shared by several attempts get the mean of their advantages. Not divided by a std.

    Attributes:
        variant: what an attempt without others gets: ``paper``: 0; ``verl``: its raw score.
    """

    name = "rloo"
    depends_on: ClassVar[Scope] = "group"
    group_relative = True

    variant: Literal["paper", "verl"] = "paper"

    def derive(self, table: TurnTable) -> Advantages:
        """Return the advantage of each scored attempt on all of its turns.

        Raises:
            InvalidInput: a scored attempt belongs to none of the table's groups.
        """
        counted, groups = grouped_attempts(table)
        scores = table.attempt_score[counted]
        moments = group_moments(scores, groups)
        others = np.maximum(moments.size - 1, 1)
        advantage = (scores - moments.mean) * moments.size / others
        if self.variant == "verl":
            advantage = np.where(moments.size == 1, scores, advantage)
        values = np.zeros(table.attempt_score.size)
        values[counted] = advantage
        return Advantages(table, table.spread(values, self.prefix_rule), self.stamp)
