"""SRL: how similar each action is to the expert's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._matcher import similarity
from trajgym.rewards._values import Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import TurnTable

__all__ = ["SRL"]


class SRL(Deriver):
    """SRL (arXiv 2510.25992): a turn's reward is the similarity of its action to the expert's.

    ``r = 2 M / T``, M the summed size of matching blocks and T the length of both, as of
    `difflib.SequenceMatcher` with the policy's action first; ``format_penalty`` where the turn's
    format is bad. Turns for which no expert's action is known get 0. The paper does not say which
    order of arguments, which elements (characters here) and which ``autojunk`` it uses, and there
    is no code: one variant. For advantages, give these rewards to an estimator
    (``Stepwise(of="reward").derive_from``); `SpreadFilter` is the paper's group filter.

    About 0.1 ms per turn for actions of a hundred characters, and as the product of their lengths
    beyond (4 ms for a thousand); equal pairs are compared once.

    Attributes:
        autojunk: see `similarity`; off by default, because it makes the reward of long actions
            collapse when they are shifted by a character.
        format_penalty: the reward of a turn with a bad format.
    """

    name = "srl"
    needs_texts = True

    autojunk: bool = False
    format_penalty: float = -1.0

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
