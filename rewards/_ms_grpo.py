"""MS-GRPO: the whole episode's return as the advantage of each of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._estimator import Estimator, Relative
from trajgym.rewards._stats import PAPER, VERL, Convention, grouped_attempts

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Scope, TurnTable

__all__ = ["MSGRPO"]


class MSGRPO(Estimator, Relative):
    """MS-GRPO (arXiv 2508.10839): ``A_i = (G_i - mean G) / std G`` on every step of episode i.

    ``G_i`` is the undiscounted sum of the rewards of the episode's turns. Turns shared by several
    attempts get the mean of their advantages. The paper's absolute-advantage-weighted sampling of
    episodes could not be verified and is not implemented.

    Attributes:
        variant: ``paper``: relative to the task's group. ``official`` (the author's fork of
            Verlog): relative to all episodes of the batch, sample std plus 1e-6; a batch of one
            episode, for which that code returns NaN, gives 0.
    """

    name = "ms_grpo"
    depends_on: ClassVar[Scope] = "group"
    conventions: ClassVar[dict[str, Convention]] = {
        "paper": PAPER,
        "official": VERL._replace(raw_single=False),
    }

    @property
    def scope(self) -> Scope:
        """The whole run in the ``official`` variant, else the group."""
        return "run" if self.variant == "official" else "group"

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the single term ``episode``."""
        counted, groups = grouped_attempts(table)
        if self.variant == "official":
            groups = np.zeros_like(groups)
        values = np.zeros(table.attempt_score.size)
        values[counted] = self.relative(table.total(rewards)[counted], groups)
        return {"episode": table.spread(values, self.prefix_rule)}
