"""Returns of turns, with and without a baseline per turn index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from trajgym.rewards._estimator import Estimator, Relative
from trajgym.rewards._scan import scan_back
from trajgym.rewards._stats import group_relative
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Ints, Scope, TurnTable

__all__ = ["ReturnToGo", "Stepwise", "member_groups", "positions"]


def positions(table: TurnTable) -> Ints:
    """Return int64 ``[M]``: the index of each turn in each attempt that contains it."""
    starts = table.member_starts
    index: Ints = np.arange(table.member_turn.size) - np.repeat(starts[:-1], np.diff(starts))
    return index


def member_groups(table: TurnTable) -> tuple[Ints, Ints]:
    """Return the indices (in ``[M]``) of the memberships of scored attempts, and their groups.

    Raises:
        InvalidInput: a scored attempt belongs to none of the table's groups.
    """
    counted = np.flatnonzero(table.member_counted)
    groups = table.attempt_group[table.member_attempt[counted]]
    if (groups < 0).any():
        stray = table.member_attempt[counted[int(np.argmax(groups < 0))]]
        raise InvalidInput(
            f"session {table.sessions[table.attempt_session[stray]]} belongs to none of the given "
            "groups: a group-relative advantage needs its group",
        )
    return counted, groups


class ReturnToGo(Estimator):
    """The discounted return from a turn to its attempt's end: ``G_t = r_t + gamma * G_{t+1}``.

    No baseline is subtracted. Turns shared by several attempts get the mean of their returns.

    Attributes:
        gamma: discount per turn.
    """

    name = "return_to_go"
    depends_on: ClassVar[Scope] = "session"

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the single term ``return``."""
        return {"return": table.combine(scan_back(rewards, self.gamma, table.member_starts))}


class Stepwise(Estimator, Relative):
    """Each turn's return relative to the group's turns at the same index.

    The k-th turns of a group's attempts are compared with each other: ``(G - mean) / std``. An
    index that only one attempt reached gives 0.

    Attributes:
        of: compare the return from the turn on (``return``), or the turn's own reward (``reward``).
        gamma: discount per turn of the return.
        variant: the variants differ in the std only: ``official`` is the sample std plus 1e-6 that
            trainers use.
    """

    name = "stepwise"
    depends_on: ClassVar[Scope] = "group"

    of: Literal["return", "reward"] = "return"
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the single term ``step``."""
        values = rewards
        if self.of == "return":
            values = scan_back(rewards, self.gamma, table.member_starts)
        counted, groups = member_groups(table)
        index = positions(table)
        keys = groups * (int(index.max(initial=0)) + 1) + index[counted]
        relative = np.zeros(values.size)
        convention = self.convention._replace(raw_single=False)
        relative[counted] = group_relative(values[counted], keys, convention)
        return {"step": table.combine(relative)}
