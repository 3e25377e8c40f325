"""Values from what followed a turn: a judge's votes, and hints given to a teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._spans import outermost
from trajgym.rewards._values import Advantages, Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Scope, TurnTable
    from trajgym.trajectory import SessionTree

__all__ = ["DirectiveHints", "NextStateVotes", "VoteRewards"]

_VOTE, _GAPS, _HINT = "vote", "hint_gaps", "hint"


class _Judged(Deriver):
    """A deriver of signals from a judge that saw what followed each turn."""

    def missing(self, tree: SessionTree) -> str:
        """Return what a session lacks; nothing if no turn was followed by an observation."""
        own = [turn for turn in tree.turns if not turn.simulated]
        followed = any(turn.observation or turn.parent is not None for turn in own)
        return super().missing(tree) if followed else ""


class NextStateVotes(_Judged):
    """OpenClaw-RL's evaluative signal (arXiv 2603.10165): the vote is the turn's advantage.

    Reads the signal ``vote`` (1, 0 or -1), which `trajgym.rollout.annotators.VoteJudge` records;
    a turn without one gets 0. As in the paper, nothing is normalised, and all tokens of the turn
    get the same value.

    Attributes:
        weight: factor of the vote (the paper's ``w_rl``).
    """

    name = "next_state_votes"
    depends_on: ClassVar[Scope] = "session"
    needs_signals: ClassVar[tuple[str, ...]] = (_VOTE,)
    annotations: ClassVar[tuple[str, ...]] = (_VOTE,)

    weight: float = 1.0

    def derive(self, table: TurnTable) -> Advantages:
        """Return the vote of each scored turn."""
        return Advantages(table, self.weight * _votes(table), self.stamp)


class VoteRewards(_Judged):
    """The same votes as step rewards, to be added to other rewards and passed to an estimator.

    ``Stepwise().derive_from(OutcomeReward().derive(table) + VoteRewards().derive(table))`` is the
    paper's estimator for agents with an outcome.

    Attributes:
        weight: factor of the votes.
    """

    name = "vote_rewards"
    depends_on: ClassVar[Scope] = "session"
    needs_signals: ClassVar[tuple[str, ...]] = (_VOTE,)
    annotations: ClassVar[tuple[str, ...]] = (_VOTE,)

    weight: float = 1.0

    def derive(self, table: TurnTable) -> Rewards:
        """Return the vote of each scored turn."""
        return Rewards(table, self.weight * _votes(table), self.stamp)


class DirectiveHints(_Judged):
    """OpenClaw-RL's directive signal: how much more likely a hint makes the policy's response.

    Reads the signal ``hint_gaps``, which `trajgym.rollout.annotators.HintJudge` records: for each
    response id, its log-prob under a teacher that is given the hint, minus the recorded one. The
    paper gives each token its own gap; here, turns and spans get the mean over their sampled
    tokens. Turns without a hint get 0. The paper's combination is
    ``NextStateVotes().derive(table) + DirectiveHints().derive(table)``.

    Attributes:
        over: ``turn``: all tokens of a turn get the turn's mean. ``span``: the tokens of a tool
            call, reasoning block or other span get the mean of their outermost span instead.
        clip: clip each mean to [-clip, clip]; None does not clip.
        weight: factor of the mean (the paper's ``w_opd``).
    """

    name = "directive_hints"
    depends_on: ClassVar[Scope] = "session"
    needs_signals: ClassVar[tuple[str, ...]] = (_GAPS,)
    annotations: ClassVar[tuple[str, ...]] = (_GAPS, _HINT)

    over: Literal["turn", "span"] = "turn"
    clip: Annotated[float, Field(gt=0)] | None = None
    weight: float = 1.0

    def derive(self, table: TurnTable) -> Advantages:
        """Return the mean gap of each scored turn, and what its spans add to it."""
        signal = table.signal(_GAPS)
        turns = self._shaped(np.where(table.scored & signal.known, signal.values, 0.0))
        if self.over == "turn":
            return Advantages(table, turns, self.stamp)
        of = table.span_turn
        on = table.scored[of] & signal.known[of] & outermost(table)
        # A token's value is the sum of its turn's and its span's: the span gets the difference.
        spans = np.where(on, self._shaped(signal.spans) - turns[of], 0.0)
        return Advantages(table, turns, self.stamp, spans=spans)

    def _shaped(self, gaps: Doubles) -> Doubles:
        if self.clip is not None:
            gaps = np.clip(gaps, -self.clip, self.clip)
        return self.weight * gaps


def _votes(table: TurnTable) -> Doubles:
    signal = table.signal(_VOTE)
    return np.where(table.scored & signal.known, signal.values, 0.0)
