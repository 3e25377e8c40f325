"""Information gain: how much a turn changes the policy's probability of the gold answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._estimator import Estimator, Relative
from trajgym.rewards._returns import member_groups
from trajgym.rewards._scan import scan_back
from trajgym.rewards._values import Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from trajgym.rewards._table import Doubles, Ints, Scope, TurnTable

__all__ = ["IGPO", "InformationGain", "belief", "belief_change", "igpo_token_advantages"]

_GOLD = "gold_logprob"


def belief(token_logprobs: Sequence[float]) -> float:
    """Return the probability of a gold answer: ``exp`` of the mean log-prob (nats) of its tokens.

    Raises:
        InvalidInput: there are no tokens.
    """
    if not len(token_logprobs):
        raise InvalidInput("belief: the gold answer needs at least one token")
    return float(np.exp(np.mean(token_logprobs)))


def belief_change(
    before: npt.ArrayLike, after: npt.ArrayLike, kind: Literal["igpo", "delta_belief"] = "igpo"
) -> Doubles:
    """Return the change in belief, from mean log-probs (nats) before and after a turn.

    Args:
        before: mean log-prob of the gold answer's tokens before the turn.
        after: the same after the turn.
        kind: ``igpo``: ``p_after - p_before``; ``delta_belief``: ``log p_after - log p_before``.
    """
    low, high = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    change: Doubles = np.exp(high) - np.exp(low) if kind == "igpo" else high - low
    return change


class InformationGain(Deriver):
    """The gain in belief about the gold answer as the reward of each turn.

    Reads the policy's log-probs of the gold answer from the signals ``gold_logprob`` (after each
    turn) and ``gold_logprob_before`` (at the first turn), which an annotator has to record. Turns
    without them get 0.

    Attributes:
        kind: ``igpo`` (arXiv 2510.14967): the difference of probabilities; ``delta_belief``
            (DeltaBelief-RL, arXiv 2602.12342): ``scale * max(log ratio, 0)``.
        scale: factor; the method's lambda.
        last: whether attempts' last turns get it too; in IGPO they get the outcome instead.
    """

    name = "information_gain"
    depends_on: ClassVar[Scope] = "session"
    annotations: ClassVar[tuple[str, ...]] = (_GOLD,)

    kind: Literal["igpo", "delta_belief"] = "igpo"
    scale: float = 1.0
    last: bool = False

    def derive(self, table: TurnTable) -> Rewards:
        """Return the gain of each scored turn."""
        return Rewards(table, self.gains(table), self.stamp)

    def gains(self, table: TurnTable) -> Doubles:
        """Return float64 ``[N]``: the gain of each turn."""
        gain = belief_change(table.gold_before, table.gold_after, self.kind)
        if self.kind == "delta_belief":
            gain = np.maximum(gain, 0.0)
        counted = table.scored & table.has_gold
        if not self.last:
            counted &= ~table.last
        return np.where(counted, self.scale * gain, 0.0)


class IGPO(Estimator, Relative):
    """IGPO (arXiv 2510.14967): normalised information gains, accumulated from the end.

    A turn earns its information gain (see `InformationGain`), an attempt's last turn the outcome
    instead. All turn rewards of a group are normalised together, then
    ``A_t = r_t + gamma * A_{t+1}``. Turns shared by several attempts get the mean. Implemented from
    secondary sources; the released estimator works on token positions: `igpo_token_advantages`.

    Attributes:
        gamma: discount per turn.
        earn: which of the outcome's score and the environment's step rewards are added to the
            gains; ``outcome`` by default.
        variant: the variants differ in the std only: ``official`` is the sample std plus 1e-6.
    """

    name = "igpo"
    depends_on: ClassVar[Scope] = "group"
    annotations: ClassVar[tuple[str, ...]] = (_GOLD,)
    # Outcomes are normalised together with the gains of other turns.
    group_relative = False

    earn: Literal["both", "env", "outcome"] = "outcome"
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the single term ``gain``."""
        earned = rewards + InformationGain().gains(table)[table.member_turn]
        counted, groups = member_groups(table)
        normalised = np.zeros(earned.size)
        normalised[counted] = self.relative(earned[counted], groups)
        return {"gain": table.combine(scan_back(normalised, self.gamma, table.member_starts))}


def igpo_token_advantages(
    rewards: npt.ArrayLike, mask: npt.ArrayLike, groups: Ints | None = None, gamma: float = 1.0
) -> tuple[Doubles, Doubles]:
    """Return IGPO's released estimate for padded token arrays: advantages and returns.

    The return from each token on, minus the mean of the group's returns at the same position; no
    division by a std. A zero in the mask resets the accumulated return to 0.

    Args:
        rewards: ``[R, T]``, one row per attempt.
        mask: ``[R, T]``, 1 where a token counts.
        groups: int64 ``[R]``, the group of each row; None for a single group.
        gamma: discount per token.
    """
    given, counts = np.asarray(rewards, dtype=np.float64), np.asarray(mask, dtype=np.float64)
    returns = np.zeros_like(given)
    carry = np.zeros(given.shape[0])
    for t in range(given.shape[1] - 1, -1, -1):
        carry = (given[:, t] + gamma * carry) * counts[:, t]
        returns[:, t] = carry
    labels = np.zeros(given.shape[0], dtype=np.int64) if groups is None else groups
    advantages = np.zeros_like(given)
    for label in np.unique(labels):
        rows = labels == label
        advantages[rows] = returns[rows] - returns[rows].mean(axis=0)
    return advantages * counts, returns
