"""MT-GRPO: turn and outcome advantages up to the first tool result, then outcome only."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._estimator import Relative, sum_terms
from trajgym.rewards._stats import PAPER, Convention, grouped_attempts
from trajgym.rewards._values import Advantages

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Flags, Ints, Scope, TurnTable

__all__ = ["MTGRPO"]


class MTGRPO(Relative):
    """MT-GRPO (arXiv 2505.11821): up to the first tool result ``A_outcome + coef * A_turn``.

    The turn reward of an attempt is the sum of the environment's step rewards up to and including
    its first turn with a tool result; ``A_turn`` and ``A_outcome`` are turn reward and outcome
    relative to the group. Later turns get ``A_outcome``. All turns of an attempt without a tool
    result get its ``turn reward + outcome`` relative to the group. The method is defined for two
    turns; further turns get the outcome's advantage. Turns shared by several attempts get the mean.

    Attributes:
        variant: ``paper``: population std. ``official`` (Multi-Turn-RL-Agent): sample std
            plus 1e-4. A group of one gives 0 in both.
        coef: weight of the turn advantage.
    """

    name = "mt_grpo"
    depends_on: ClassVar[Scope] = "group"
    conventions: ClassVar[dict[str, Convention]] = {
        "paper": PAPER,
        "official": Convention(ddof=1, eps=1e-4),
    }

    coef: float = 1.0

    def derive(self, table: TurnTable) -> Advantages:
        """Return the sum of the terms."""
        return Advantages(table, sum_terms(self.terms(table)), self.stamp)

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms ``outcome``, ``turn``, and ``merged`` (no tool result)."""
        counted, groups = grouped_attempts(table)
        calls = (table.calls_ok + table.calls_failed)[table.member_turn] > 0
        before: Ints = np.cumsum(calls) - calls
        sizes = np.diff(table.member_starts)
        full = sizes > 0
        base = np.zeros(sizes.size, dtype=np.int64)
        base[full] = before[table.member_starts[:-1][full]]
        early: Flags = before == np.repeat(base, sizes)
        has_result = table.total(calls.astype(np.float64)) > 0
        turn_reward = table.total(table.env_reward[table.member_turn] * early)
        advantages = []
        for rewards in (table.attempt_score, turn_reward, table.attempt_score + turn_reward):
            values = np.zeros(sizes.size)
            values[counted] = self.relative(rewards[counted], groups)
            advantages.append(values)
        outcome, turn, merged = advantages
        on_turns = np.repeat(np.where(has_result, self.coef * turn, 0.0), sizes) * early
        return {
            "outcome": table.spread(np.where(has_result, outcome, 0.0)),
            "turn": table.combine(on_turns),
            "merged": table.spread(np.where(has_result, 0.0, merged)),
        }
