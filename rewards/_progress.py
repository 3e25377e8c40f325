"""Step rewards from a count that falls as a task gets done, such as that of failing tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._table import TurnTable
from trajgym.rewards._values import Rewards

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.rewards._table import Flags, Ints, Scope
    from trajgym.trajectory import Group, SessionTree

__all__ = ["SignalProgress"]


class SignalProgress(Deriver):
    """By how much a count fell since it was last known, as a share of its first value.

    Reads a signal of the turn that counts what is left to do, by default ``tests_failed`` of the
    SWE environments. The first turn of an attempt that has it earns 0, and so does a turn without
    it; a count that rises costs what its fall would have earned. If the first value is not
    positive, changes are not divided by it. The rewards of an attempt whose count ends at 0 add up
    to ``scale``. The signal has to count the same things in every turn: running one failing test
    and then all of them looks like a step back.

    The outcome is not included: add it and pass the sum to an estimator, for example with
    ``{"name": "stepwise", "rewards": ["outcome", "signal_progress"]}``.

    Attributes:
        signal: the signal that is read.
        scale: what the fall from the first value to 0 earns.
    """

    name = "signal_progress"
    depends_on: ClassVar[Scope] = "session"

    signal: str = "tests_failed"
    scale: float = 1.0

    def table(self, groups: Iterable[Group], sessions: Iterable[SessionTree]) -> TurnTable:
        """Return the table with the signal."""
        return TurnTable.build(groups, sessions, signals=(self.signal,))

    def derive(self, table: TurnTable) -> Rewards:
        """Return the change of each scored turn that has the signal and an ancestor that has it."""
        counts = table.signal(self.signal)
        first, before, turn = _earlier(table, counts.known)
        start = counts.values[first]
        fall = (counts.values[before] - counts.values[turn]) / np.where(start > 0, start, 1.0)
        gains = np.zeros(len(table))
        gains[turn] = (
            self.scale * fall
        )  # rivals share ancestors, so repeated turns get equal values
        return Rewards(table, np.where(table.scored, gains, 0.0), self.stamp)


def _earlier(table: TurnTable, known: Flags) -> tuple[Ints, Ints, Ints]:
    """Return the first, the previous and the present known turn, where there is a previous one."""
    at = np.flatnonzero(known[table.member_turn])  # memberships that have the signal, in order
    turn, attempt = table.member_turn[at], table.member_attempt[at]
    opens = np.r_[True, attempt[1:] != attempt[:-1]][: at.size]
    first = turn[np.maximum.accumulate(np.where(opens, np.arange(at.size), 0))]
    later = np.flatnonzero(~opens)
    return first[later], turn[later - 1], turn[later]
