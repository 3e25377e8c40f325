"""Estimators: derivers that compute advantages from rewards."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._stats import PAPER, VERL, Convention, group_relative
from trajgym.rewards._values import Advantages
from trajgym.trajectory import InvalidInput, Stamp

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Ints, TurnTable
    from trajgym.rewards._values import Rewards

__all__ = ["Earn", "Estimator", "Relative", "compares_sessions", "earned", "sum_terms"]

Earn: TypeAlias = Literal["both", "env", "outcome"]


def earned(table: TurnTable, earn: Earn = "both") -> Doubles:
    """Return float64 ``[M]``: what each turn earned in each attempt that holds it.

    Args:
        table: the turns.
        earn: ``env`` is the environment's step rewards; ``outcome`` the outcome's score on the
            attempt's last turn; ``both`` their sum.
    """
    rewards = np.zeros(table.member_turn.size)
    if earn != "outcome":
        rewards += table.env_reward[table.member_turn]
    if earn != "env":
        full = np.flatnonzero(np.diff(table.member_starts))
        rewards[table.member_starts[full + 1] - 1] += table.attempt_score[full]
    rewards[~table.member_counted] = 0.0
    return rewards


def sum_terms(terms: dict[str, Doubles]) -> Doubles:
    """Return the sum of the terms, added in their order."""
    first, *others = terms.values()
    total = first
    for term in others:
        total = total + term
    return total


class Estimator(Deriver):
    """A deriver of advantages from what the turns earned.

    Attributes:
        earn: the environment's step rewards (``env``), the outcome's score on the attempt's last
            turn (``outcome``), or ``both``, the default. If an environment's score is the sum of
            its step rewards, as with gymnasium environments, ``both`` counts it twice; use
            ``env``. :meth:`derive_from` takes other rewards instead.
    """

    earn: Earn = "both"

    @abstractmethod
    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the terms of the advantages by name, float64 ``[N]`` each.

        Args:
            table: the turns.
            rewards: float64 ``[M]``, what each turn earned in each attempt that holds it; 0 in
                attempts that are not scored.
        """

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms whose sum is each turn's advantage, by name."""
        return self.estimate(table, earned(table, self.earn))

    def derive(self, table: TurnTable) -> Advantages:
        """Return the advantage of every turn."""
        return Advantages(table, sum_terms(self.terms(table)), self.stamp)

    def derive_from(self, rewards: Rewards) -> Advantages:
        """Return the advantages that follow from these rewards instead of ``earn``.

        Raises:
            InvalidInput: there are rewards over spans; only rewards over turns are accepted.
        """
        if rewards.spans is not None:
            raise InvalidInput(
                f"{self.name} takes rewards over turns; {rewards.stamp.deriver} has some over "
                "spans",
            )
        table = rewards.table
        given = rewards.values[table.member_turn] * table.member_counted
        settings = self.stamp.settings | {"rewards": rewards.stamp._asdict()}
        terms = self.estimate(table, given)
        return Advantages(table, sum_terms(terms), Stamp(self.name, settings))


def compares_sessions(deriver: Deriver) -> bool:
    """Return whether values are relative to a group, so that a group of one gives 0."""
    return deriver.group_relative or isinstance(deriver, Relative)


class Relative(Deriver):
    """A deriver whose values are relative to a group.

    Attributes:
        variant: ``paper`` or ``official``, where the paper and its code differ.
        eps: added to the std instead of the variant's own.
        ddof: 0 for the std of the group itself, 1 for the sample std, instead of the variant's.
    """

    group_relative = True
    conventions: ClassVar[dict[str, Convention]] = {"paper": PAPER, "official": VERL}

    variant: Literal["paper", "official"] = "paper"
    eps: Annotated[float, Field(ge=0)] | None = None
    ddof: Literal[0, 1] | None = None

    @property
    def convention(self) -> Convention:
        """The convention that ``variant``, ``eps`` and ``ddof`` select."""
        found = self.conventions[self.variant]
        if self.eps is not None:
            found = found._replace(eps=self.eps)
        return found if self.ddof is None else found._replace(ddof=self.ddof)

    def relative(self, values: Doubles, groups: Ints) -> Doubles:
        """Return values relative to their groups under the deriver's convention."""
        return group_relative(values, groups, self.convention)
