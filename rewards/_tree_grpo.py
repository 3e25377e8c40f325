"""Tree-GRPO: advantages within each tree and across the trees of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from trajgym.rewards._estimator import Relative, sum_terms
from trajgym.rewards._stats import grouped_attempts
from trajgym.rewards._values import Advantages
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, PrefixRule, Scope, TurnTable

__all__ = ["TreeBudget", "TreeGRPO", "tree_budget", "tree_diff_scores"]


class TreeGRPO(Relative):
    """Tree-GRPO (arXiv 2509.21240): ``A = A_intra + A_inter`` of each leaf.

    A tree is a session, its leaves are the session's scored attempts, and the trees of a prompt
    are its group. ``A_intra`` is the leaf's outcome relative to the leaves of its tree, ``A_inter``
    relative to all leaves of the prompt, both as ``(R - mean) / std``. Turns shared by leaves get
    the sum of their advantages: the paper trains every leaf as a whole sequence including the
    prefix, and a prefix that is trained once needs the sum to get the same gradient (for a loss
    summed over tokens without clipping; with clipping the two differ).

    Attributes:
        variant: ``paper``: population std; in a tree or prompt with a single leaf the term is 0.
            ``official`` (AMAP-ML/Tree-GRPO): sample std plus 1e-6, and a single leaf keeps its raw
            reward, in each of the two terms.
        combine: ``two_norm`` normalises within the prompt and the result again within the tree;
            it is in the released code, but the paper's results do not use it.
    """

    name = "tree_grpo"
    depends_on: ClassVar[Scope] = "group"
    prefix_rule: ClassVar[PrefixRule] = "sum"

    combine: Literal["sum", "two_norm"] = "sum"

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms ``intra`` and ``inter`` (or ``two_norm`` alone)."""
        return {
            name: table.spread(values, self.prefix_rule)
            for name, values in self.of_leaves(table).items()
        }

    def of_leaves(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms over attempts, float64 ``[A]`` each."""
        counted, groups = grouped_attempts(table)
        scores, trees = table.attempt_score[counted], table.attempt_session[counted]
        inter = self.relative(scores, groups)
        if self.combine == "two_norm":
            found = {"two_norm": self.relative(inter, trees)}
        else:
            found = {"intra": self.relative(scores, trees), "inter": inter}
        return {name: _over(table, counted, values) for name, values in found.items()}

    def derive(self, table: TurnTable) -> Advantages:
        """Return the summed advantages of the leaves below each turn."""
        return Advantages(table, sum_terms(self.terms(table)), self.stamp)


def _over(table: TurnTable, counted: np.ndarray, values: Doubles) -> Doubles:
    everywhere = np.zeros(table.attempt_score.size)
    everywhere[counted] = values
    return everywhere


class TreeBudget(NamedTuple):
    """Number and cost of the leaves of a prompt, in the unit of ``chain_cost``."""

    leaves: int
    paper_cost: float
    """The paper's formula, ``M * B + L * N * B / 2``; correct only if the N nodes are shared by
    all trees."""
    code_cost: float
    """The released code's cost, with N nodes expanded per tree: ``M * B + M * L * N * B / 2``."""


def tree_budget(trees: int, nodes: int, rounds: int, chain_cost: float = 1.0) -> TreeBudget:
    """Return the number of leaves of M trees, and their expected cost.

    Args:
        trees: M, independent chains that start the trees of a prompt.
        nodes: N, nodes expanded per tree and round.
        rounds: L, rounds of expansion.
        chain_cost: B, cost of one whole chain; an expansion costs half of it on average.

    Raises:
        InvalidInput: there is no tree, or a number is negative.
    """
    if trees < 1 or nodes < 0 or rounds < 0 or chain_cost < 0:
        raise InvalidInput(
            f"tree budget: {trees} trees, {nodes} nodes, {rounds} rounds, cost {chain_cost}: "
            "at least one tree is needed, and no number may be negative",
        )
    expanded = rounds * nodes * chain_cost / 2
    base = trees * chain_cost
    return TreeBudget(trees * (rounds * nodes + 1), base + expanded, base + trees * expanded)


def tree_diff_scores(table: TurnTable, margin: float = 0.1) -> Doubles:
    """Return float64 ``[N]``: the node score of the released code's ``tree_diff`` mode.

    It is ``(max(V - V_parent - margin, 0) + V) / sqrt(leaves)``, where V is the mean outcome of the
    leaves below; the parent of a session's first turns is the session's root. The paper does not
    mention it.
    """
    value = table.spread(table.attempt_score)
    leaves = table.spread(np.ones(table.attempt_score.size), "sum")
    scored = table.attempt_scored
    owners, size = table.attempt_session[scored], len(table.sessions)
    sums = np.bincount(owners, weights=table.attempt_score[scored], minlength=size)
    root = sums / np.maximum(np.bincount(owners, minlength=size), 1)
    above = np.where(table.parent < 0, root[table.session], value[table.parent])
    gain = np.maximum(value - above - margin, 0.0)
    return np.where(table.scored, (gain + value) / np.sqrt(np.maximum(leaves, 1.0)), 0.0)
