"""SRL: similarity of each action to the expert's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._matcher import similarity
from trajgym.rewards._values import Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import Scope, TurnTable
    from trajgym.trajectory import SessionTree

__all__ = ["SRL"]


class SRL(Deriver):
    """SRL (arXiv 2510.25992): a turn's reward is the similarity of its action to the expert's.

    ``r = 2 M / T``, M the total size of matching blocks and T the length of both, as in
    `difflib.SequenceMatcher` with the policy's action first; ``format_penalty`` if the turn's
    format is bad. Turns without a known expert action get 0. The paper does not specify the order
    of the arguments, the elements (characters here) or ``autojunk``, and there is no released code,
    hence one variant. For advantages, pass these rewards to an estimator
    (``Stepwise(of="reward").derive_from``); `SpreadFilter` is the paper's group filter.

    Takes about 0.1 ms per turn for actions of 100 characters, and grows with the product of the
    lengths (4 ms for 1,000 characters). Equal pairs are compared once.

    Attributes:
        autojunk: see `similarity`; off by default, because with it the reward of a long action can
            drop to nearly 0 when it is shifted by one character.
        format_penalty: the reward of a turn with a bad format.
    """

    name = "srl"
    depends_on: ClassVar[Scope] = "session"
    needs_texts = True

    autojunk: bool = False
    format_penalty: float = -1.0

    def missing(self, tree: SessionTree) -> str:
        """Return what a session lacks: an expert's action for at least one of its turns."""
        scored = [attempt for attempt in tree.attempts if attempt.outcome is not None]
        given = any(
            attempt.outcome.details.get("expert_actions") for attempt in scored if attempt.outcome
        )
        if not scored or given or any("expert_action" in turn.signals for turn in tree.turns):
            return ""
        return "no signal 'expert_action' and no outcome detail 'expert_actions'"

    def derive(self, table: TurnTable) -> Rewards:
        """Return the similarity of each scored turn's action."""
        action, expert = table.text.action, table.text.expert
        known: dict[tuple[str, str], float] = {}
        values = np.zeros(len(table))
        for turn in np.flatnonzero(table.scored).tolist():
            wanted = expert[turn]
            if wanted is None:
                continue
            if not table.format_ok[turn]:
                values[turn] = self.format_penalty
                continue
            pair = action[turn], wanted
            if pair not in known:
                known[pair] = similarity(*pair, autojunk=self.autojunk)
            values[turn] = known[pair]
        return Rewards(table, values, self.stamp)
