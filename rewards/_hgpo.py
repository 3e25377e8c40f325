"""HGPO: steps compared over several lengths of shared history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from trajgym.rewards._estimator import Estimator, Relative
from trajgym.rewards._returns import member_groups, positions
from trajgym.rewards._scan import scan_back
from trajgym.rewards._stats import Convention, group_relative

if TYPE_CHECKING:
    from typing import ClassVar

    from trajgym.rewards._table import Doubles, Flags, Ints, Scope, TurnTable

__all__ = ["HGPO"]

_ROOM = 2**62


class HGPO(Estimator, Relative):
    """HGPO (arXiv 2602.22817): ``A = sum_k w_k A_k`` over groups with the same last k states.

    For k = 1 to history + 1, the steps of a group whose last k states are equal are compared:
    ``A_k`` is the step's discounted return relative to theirs. Groups of one are skipped, and k is
    at most the number of the step's states. ``w_k`` is proportional to ``(k + 1) ** alpha`` among
    the k whose ``A_k`` is not 0. Turns shared by several attempts get the mean of their advantages.

    Attributes:
        variant: ``paper``: as above. ``official`` (verl-agent's recipe): 1e-6 is added to the std
            and to the sum of the weights.
        history: how many earlier states count.
        alpha: exponent of the weights; 0 gives all k equal weight.
        mode: ``mean_norm`` subtracts the mean, ``mean_std_norm`` also divides by the population
            std (in both variants).
        gamma: discount per step.
        base_group: include the episode's return relative to the group's rows (one per step)
            as k = 0.
    """

    name = "hgpo"
    depends_on: ClassVar[Scope] = "group"
    # Equal outcomes are discounted over different numbers of turns, so returns can differ.
    group_relative = False
    needs_digests = True
    conventions: ClassVar[dict[str, Convention]] = {
        "paper": Convention(),
        "official": Convention(eps=1e-6),
    }

    history: Annotated[int, Field(ge=0, le=16)] = 2
    alpha: float = 1.0
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_std_norm"
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    base_group: bool = False

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return one term per length of history: ``history 1``, ... (``base`` for 0)."""
        counted, groups = member_groups(table)
        returns = scan_back(rewards, self.gamma, table.member_starts)[counted]
        convention = self.convention._replace(divide=self.mode == "mean_std_norm")
        parts: dict[str, tuple[int, Doubles]] = {}
        if self.base_group:
            rows = table.total(rewards)[table.member_attempt[counted]]
            base = convention._replace(ddof=1, raw_single=True)
            parts["base"] = (0, group_relative(rows, groups, base))
        for k, at, keys in _histories(table, counted, groups, self.history + 1):
            relative = np.zeros(counted.size)
            relative[at] = group_relative(returns[at], keys, convention)
            parts[f"history {k}"] = (k, relative)
        return self._weighted(table, counted, parts)

    def _weighted(
        self, table: TurnTable, counted: Ints, parts: dict[str, tuple[int, Doubles]]
    ) -> dict[str, Doubles]:
        total = np.zeros(counted.size)
        for k, part in parts.values():
            total += (part != 0) * (k + 1.0) ** self.alpha
        if self.variant == "official":
            total += self.convention.eps
        total[total == 0] = 1.0
        terms = {}
        for name, (k, part) in parts.items():
            values = np.zeros(table.member_turn.size)
            values[counted] = part * (k + 1.0) ** self.alpha / total
            terms[name] = table.combine(values)
        return terms


def _histories(
    table: TurnTable, counted: Ints, groups: Ints, longest: int
) -> list[tuple[int, Ints, Ints]]:
    """Return for each k: k, the steps with at least k states, and the key of their last k states.

    Steps are indices into ``counted``; equal keys mean the same group and the same last k states.
    """
    states = table.state[table.member_turn[counted]]
    width = int(states.max(initial=0)) + 1
    index = positions(table)[counted]
    keys: Ints = groups * width + states
    at = np.arange(counted.size)
    found = [(1, at, keys)]
    for k in range(2, longest + 1):
        # Steps that share k - 1 states with no other step share no k states either.
        at = at[_shared(keys[at]) & (index[at] >= k - 1)]
        if int(keys.max(initial=0)) >= _ROOM // width:
            keys = np.unique(keys, return_inverse=True)[1]
        # The previous step's key over its last k - 1 states, combined with this state.
        keys = np.r_[0, keys[:-1]] * width + states
        found.append((k, at, keys[at]))
    return found


def _shared(keys: Ints) -> Flags:
    """Return bool ``[n]``: keys that occur more than once."""
    ordered = np.sort(keys)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not twice.size:
        return np.zeros(keys.size, dtype=np.bool_)
    place = np.minimum(np.searchsorted(twice, keys), twice.size - 1)
    shared: Flags = twice[place] == keys
    return shared
