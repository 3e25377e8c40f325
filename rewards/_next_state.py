"""What came after a turn as its value: a judge's votes, and hints that a teacher was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._spans import outermost
from trajgym.rewards._values import Advantages, Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, TurnTable

__all__ = ["DirectiveHints", "NextStateVotes", "VoteRewards"]

_VOTE, _GAPS = "vote", "hint_gaps"


class NextStateVotes(Deriver):
    """OpenClaw-RL's evaluative signal (arXiv 2603.10165): the vote is the turn's advantage.

    Reads the signal ``vote`` (1, 0 or -1), which `trajgym.rollout.VoteJudge` records; a turn
    without one gets 0. As in the paper nothing is normalised, and all of the turn's tokens carry
    it.

    Attributes:
        weight: multiplies it (the paper's ``w_rl``).
    """

    name = "next_state_votes"
    needs_signals: ClassVar[tuple[str, ...]] = (_VOTE,)

    weight: float = 1.0

    def derive(self, table: TurnTable) -> Advantages:
        """Return the vote of each scored turn."""
        return Advantages(table, self.weight * _votes(table), self.stamp)


class VoteRewards(Deriver):
    """The same votes as step rewards, to be added to others and handed to an estimator.

    ``Stepwise().derive_from(OutcomeReward().derive(table) + VoteRewards().derive(table))`` is the
    paper's estimator for agents with an outcome.

    Attributes:
        weight: multiplies them.
    """

    name = "vote_rewards"
    needs_signals: ClassVar[tuple[str, ...]] = (_VOTE,)

    weight: float = 1.0

    def derive(self, table: TurnTable) -> Rewards:
        """Return the vote of each scored turn."""
        return Rewards(table, self.weight * _votes(table), self.stamp)


class DirectiveHints(Deriver):
    """OpenClaw-RL's directive signal: how much likelier a hint makes what the policy said.

    Reads the signal ``hint_gaps``, which `trajgym.rollout.HintJudge` records: for each response
    id, its log-prob under a teacher who knew the hint, less its recorded one. The paper gives each
    token its own gap; values here lie on turns and spans, and are means over sampled tokens. Turns
    without a hint get 0. ``NextStateVotes().derive(table) + DirectiveHints().derive(table)`` is the
    paper's combination.

    Attributes:
        over: ``turn``: all tokens of a turn get the turn's mean. ``span``: those of a tool call,
            a reasoning block and the like get their span's mean instead (spans inside others are
            part of those), the rest the turn's.
        clip: keep each mean in [-clip, clip]; None keeps it as it is.
        weight: multiplies it (the paper's ``w_opd``).
    """

    name = "directive_hints"
    needs_signals: ClassVar[tuple[str, ...]] = (_GAPS,)

    over: Literal["turn", "span"] = "turn"
    clip: Annotated[float, Field(gt=0)] | None = None
    weight: float = 1.0

    def derive(self, table: TurnTable) -> Advantages:
        """Return the mean gap of each scored turn, and of its spans on top."""
        signal = table.signal(_GAPS)
        turns = self._shaped(np.where(table.scored & signal.known, signal.values, 0.0))
        if self.over == "turn":
            return Advantages(table, turns, self.stamp)
        of = table.span_turn
        on = table.scored[of] & signal.known[of] & outermost(table)
        # A token's value is its turn's plus its span's: the span brings the difference.
        spans = np.where(on, self._shaped(signal.spans) - turns[of], 0.0)
        return Advantages(table, turns, self.stamp, spans=spans)

    def _shaped(self, gaps: Doubles) -> Doubles:
        if self.clip is not None:
            gaps = np.clip(gaps, -self.clip, self.clip)
        return self.weight * gaps


def _votes(table: TurnTable) -> Doubles:
    signal = table.signal(_VOTE)
    return np.where(table.scored & signal.known, signal.values, 0.0)
