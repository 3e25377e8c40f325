"""Filters: which attempts to train on, and why the others are dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from trajgym.rewards._deriver import Deriver  # noqa: TC001 (pydantic reads the field's type)
from trajgym.rewards._estimator import Earn, earned
from trajgym.rewards._grpo import GRPO
from trajgym.rewards._stats import group_moments, grouped_attempts
from trajgym.trajectory import Dropped, InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Flags, TurnTable
    from trajgym.rewards._values import Rewards, TurnValues

__all__ = ["DynamicSampling", "Filter", "Kept", "SpreadFilter", "ZeroAdvantage"]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The attempts that a filter kept.

    Args:
        source: the table that was filtered.
        attempts: bool ``[A]``; False on attempts that are not scored.
        reasons: why each other scored attempt was dropped, by its place in the table.
    """

    source: TurnTable
    attempts: Flags
    reasons: dict[int, str]

    @property
    def sessions(self) -> list[str]:
        """Ids of the sessions with at least one kept attempt, in the table's order."""
        places = np.unique(self.source.attempt_session[self.attempts])
        return [self.source.sessions[place] for place in places.tolist()]

    @property
    def dropped(self) -> list[Dropped]:
        """All scored attempts that were dropped, and why."""
        table = self.source
        return [
            Dropped(
                table.sessions[table.attempt_session[place]],
                int(table.attempt_index[place]),
                reason,
            )
            for place, reason in sorted(self.reasons.items())
        ]

    @property
    def table(self) -> TurnTable:
        """The same turns, with dropped attempts marked as not scored."""
        table = self.source
        scored = np.zeros(len(table), dtype=np.bool_)
        scored[table.member_turn[np.repeat(self.attempts, np.diff(table.member_starts))]] = True
        kept = self.attempts.copy()
        score = np.where(kept, table.attempt_score, 0.0)
        passed: Flags = kept & table.attempt_passed
        for values in (scored, kept, score, passed):
            values.flags.writeable = False
        return replace(
            table, scored=scored, attempt_scored=kept, attempt_score=score, attempt_passed=passed
        )


class Filter(BaseModel, ABC):
    """Chooses among the scored attempts of sealed groups; its fields are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    name: ClassVar[str]

    @abstractmethod
    def select(self, table: TurnTable) -> Kept:
        """Return the kept attempts, and a reason for every scored attempt that is dropped."""


def _kept_groups(table: TurnTable, keep: Flags, reason: str) -> Kept:
    """Keep the scored attempts of the groups marked in ``keep`` (bool ``[G]``)."""
    counted, groups = grouped_attempts(table)
    attempts = np.zeros(table.attempt_scored.size, dtype=np.bool_)
    attempts[counted] = keep[groups]
    return Kept(table, attempts, dict.fromkeys(counted[~keep[groups]].tolist(), reason))


class DynamicSampling(Filter):
    """DAPO's dynamic sampling (arXiv 2503.14476): keep a group iff 0 < passes < size.

    An attempt passes if its outcome has ``passed`` set, regardless of its score.
    """

    name = "dynamic_sampling"

    def select(self, table: TurnTable) -> Kept:
        """Return the groups that have both passes and failures."""
        counted, groups = grouped_attempts(table)
        size = len(table.groups)
        passes = np.bincount(groups, weights=table.attempt_passed[counted], minlength=size)
        keep = (passes > 0) & (passes < np.bincount(groups, minlength=size))
        return _kept_groups(table, keep, "its group has passes only or failures only")


class SpreadFilter(Filter):
    """Keep a group iff the population std of its returns is above ``epsilon``.

    SRL's dynamic sampling (arXiv 2510.25992); the paper does not state its epsilon. With 0, exactly
    the groups whose returns are all equal are dropped, including groups of one.

    Attributes:
        epsilon: threshold of the std.
        earn: what is summed, see `Estimator`; :meth:`select_from` takes rewards instead.
    """

    name = "spread"

    epsilon: Annotated[float, Field(ge=0)] = 0.0
    earn: Earn = "outcome"

    def select(self, table: TurnTable) -> Kept:
        """Return the groups whose returns vary."""
        return self._select(table, table.total(earned(table, self.earn)))

    def select_from(self, rewards: Rewards) -> Kept:
        """Return the groups in which the sums of these rewards vary.

        Raises:
            InvalidInput: there are rewards over spans.
        """
        if rewards.spans is not None:
            raise InvalidInput("spread: give it rewards over turns, not over spans")
        table = rewards.table
        return self._select(table, table.total(rewards.values[table.member_turn]))

    def _select(self, table: TurnTable, returns: Doubles) -> Kept:
        counted, groups = grouped_attempts(table)
        keep = np.zeros(len(table.groups), dtype=np.bool_)
        keep[groups] = group_moments(returns[counted], groups).std > self.epsilon
        reason = f"its group's returns have a std of {self.epsilon} or less"
        return _kept_groups(table, keep, reason)


class ZeroAdvantage(Filter):
    """Drop attempts whose advantage is 0 on all of their turns and spans (arXiv 2508.03501v2).

    Attributes:
        deriver: gives the advantages; :meth:`select_from` takes advantages instead.
    """

    name = "zero_advantage"

    deriver: SerializeAsAny[Deriver] = Field(default_factory=GRPO)

    def select(self, table: TurnTable) -> Kept:
        """Return the attempts whose advantages are not all 0."""
        return self.select_from(self.deriver.derive(table))

    def select_from(self, derived: TurnValues) -> Kept:
        """Return the attempts for which these advantages are not all 0."""
        table = derived.table
        turns = derived.values != 0
        if derived.spans is not None:
            turns[table.span_turn[derived.spans != 0]] = True
        some = table.total(turns[table.member_turn].astype(np.float64)) > 0
        attempts = table.attempt_scored & some
        dropped = np.flatnonzero(table.attempt_scored & ~some).tolist()
        return Kept(table, attempts, dict.fromkeys(dropped, "its advantage is 0"))
