"""GiGPO: an episode's advantage plus a step's advantage among visits to the same state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from trajgym.rewards._estimator import Estimator, Relative
from trajgym.rewards._matcher import SimilarityMatcher
from trajgym.rewards._returns import member_groups, positions
from trajgym.rewards._scan import scan_back
from trajgym.rewards._stats import group_moments, group_relative
from trajgym.rewards._table import TurnTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.rewards._table import Doubles, Ints, Scope
    from trajgym.trajectory import Group, SessionTree

__all__ = ["GiGPO", "similar_states"]


class GiGPO(Estimator, Relative):
    """GiGPO (arXiv 2505.10978): ``A = A_E + omega * A_S``.

    ``A_E`` is the episode's return relative to the group. ``A_S`` is the discounted return from the
    step on, relative to all steps of the group, of any attempt and at any time, that acted in the
    same state (the anchor group). A state that was visited once gives ``A_S = 0``. Turns shared by
    several attempts get the mean of their advantages.

    Attributes:
        variant: ``paper``: the episode's baseline is over trajectories; population std.
            ``official`` (verl-agent): over rows, one per step, so that long trajectories weigh
            more in the baseline; sample std plus 1e-6; a group of one step keeps its raw return.
        gamma: discount per step; 0.95 in the paper, 1.0 in the released configuration.
        omega: weight of ``A_S``.
        mode: ``mean_norm`` subtracts the mean, ``mean_std_norm`` also divides by the std.
        invalid_penalty: subtracted from the episode's and the step's return at steps with a bad
            format, after discounting, so that earlier steps are not affected. 0.1 in the released
            code.
        similarity: also treat states as the same if their texts have at least this similarity
            (0.95 in the released code). Each distinct state of a group is compared with the first
            of every cluster: the cost is quadratic in the number of distinct states, and the
            result depends on their order (by sample number and id).
    """

    name = "gigpo"
    depends_on: ClassVar[Scope] = "group"
    # Equal outcomes are discounted over different numbers of turns, so returns can differ.
    group_relative = False
    needs_digests = True

    gamma: Annotated[float, Field(ge=0, le=1)] = 0.95
    omega: float = 1.0
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    invalid_penalty: float = 0.0
    similarity: Annotated[float, Field(gt=0, le=1)] | None = None

    def table(self, groups: Iterable[Group], sessions: Iterable[SessionTree]) -> TurnTable:
        """Return the table of these sessions with all columns that this deriver reads."""
        texts = self.similarity is not None
        return TurnTable.build(groups, sessions, digests=True, texts=texts)

    def estimate(self, table: TurnTable, rewards: Doubles) -> dict[str, Doubles]:
        """Return the terms ``episode`` and ``step``."""
        counted, groups = member_groups(table)
        penalty = self.invalid_penalty * ~table.format_ok[table.member_turn[counted]]
        returns = scan_back(rewards, self.gamma, table.member_starts)[counted] - penalty
        states = table.state if self.similarity is None else similar_states(table, self.similarity)
        anchors = groups * (int(states.max(initial=0)) + 1) + states[table.member_turn[counted]]
        convention = self.convention._replace(divide=self.mode == "mean_std_norm")
        step = group_relative(returns, anchors, convention._replace(raw_single=False))
        rows = table.total(rewards)[table.member_attempt[counted]] - penalty
        if self.variant == "official":
            episode = group_relative(rows, groups, convention)
        else:
            episode = self._over_trajectories(table, counted, rows)
        terms = {}
        for name, part in (("episode", episode), ("step", self.omega * step)):
            values = np.zeros(table.member_turn.size)
            values[counted] = part
            terms[name] = table.combine(values)
        return terms

    def _over_trajectories(self, table: TurnTable, counted: Ints, rows: Doubles) -> Doubles:
        """Return each row relative to the mean of its group's trajectories (of their mean rows)."""
        holders = table.member_attempt[counted]
        held = np.bincount(holders, minlength=table.attempt_scored.size)
        sums = np.bincount(holders, weights=rows, minlength=held.size)
        if self.invalid_penalty == 0:
            # The rows of a trajectory are equal, but their computed mean can differ by rounding.
            sums[holders] = rows * held[holders]
        attempts = np.flatnonzero(held)
        means = np.zeros(held.size)
        means[attempts] = sums[attempts] / held[attempts]
        if self.invalid_penalty == 0:
            means[holders] = rows
        moments = group_moments(
            means[attempts], table.attempt_group[attempts], self.convention.ddof
        )
        mean, std = np.zeros(held.size), np.zeros(held.size)
        mean[attempts], std[attempts] = moments.mean, moments.std
        centred: Doubles = rows - mean[holders]
        if self.mode == "mean_norm":
            return centred
        scale = std[holders] + self.convention.eps
        return np.divide(centred, scale, out=np.zeros_like(centred), where=std[holders] > 0)


def similar_states(table: TurnTable, threshold: float) -> Ints:
    """Return int64 ``[N]``: the cluster of each turn's state, among the states of its group.

    Greedy: states are taken in the order of sessions and turns, and each joins the first cluster
    whose first state has at least ``threshold`` similarity (`SequenceMatcher.ratio` with autojunk).
    """
    counted = np.flatnonzero(table.member_counted)
    turns = table.member_turn[counted]
    order = np.lexsort(
        (positions(table)[counted], table.attempt[turns], table.session_order[table.session[turns]])
    )
    texts, codes = table.text.state, table.state
    firsts: dict[int, list[tuple[SimilarityMatcher[str], int]]] = {}
    known: dict[tuple[int, int], int] = {}
    clusters = codes.copy()
    for turn in turns[order].tolist():
        group, code = int(table.group[turn]), int(codes[turn])
        if (group, code) not in known:
            leaders = firsts.setdefault(group, [])
            text = texts[turn]
            fits = (
                mark
                for matcher, mark in leaders
                if matcher.could_reach(text, threshold) and matcher.ratio(text) >= threshold
            )
            found = next(fits, -1)
            if found < 0:
                found = code
                leaders.append((SimilarityMatcher(text), code))
            known[group, code] = found
        clusters[turn] = known[group, code]
    return clusters
