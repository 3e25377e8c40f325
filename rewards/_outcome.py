"""Outcomes and step rewards of the environment, as rewards or as returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._values import Advantages, Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import Scope, TurnTable

__all__ = ["OutcomeReturn", "OutcomeReward", "StepReward"]


class OutcomeReward(Deriver):
    """The outcome's score as the reward of the attempt's last turn; 0 on every other turn."""

    name = "outcome"
    depends_on: ClassVar[Scope] = "session"

    def derive(self, table: TurnTable) -> Rewards:
        """Return the score of each scored attempt on its last turn."""
        return Rewards(table, table.at_leaves(table.attempt_score, self.prefix_rule), self.stamp)


class OutcomeReturn(Deriver):
    """The outcome's score as the return of every turn of the attempt, without a baseline.

    A turn shared by several scored attempts gets the mean of their scores. The result is of type
    `Advantages` because it weights tokens; as rewards, an attempt of ten turns would earn its
    score ten times.
    """

    name = "outcome_return"
    depends_on: ClassVar[Scope] = "session"

    def derive(self, table: TurnTable) -> Advantages:
        """Return the score of each scored attempt on all of its turns."""
        return Advantages(table, table.spread(table.attempt_score, self.prefix_rule), self.stamp)


class StepReward(Deriver):
    """The environment's own step rewards, each on its turn; 0 where it gave none.

    They do not include the outcome; add both for the whole return.
    """

    name = "step_reward"
    depends_on: ClassVar[Scope] = "session"

    def derive(self, table: TurnTable) -> Rewards:
        """Return the step reward of each scored turn."""
        return Rewards(table, np.where(table.scored, table.env_reward, 0.0), self.stamp)
