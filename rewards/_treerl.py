"""TreeRL: process rewards of tree nodes from the outcomes of the leaves below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._estimator import sum_terms
from trajgym.rewards._stats import group_moments, grouped_attempts
from trajgym.rewards._values import Advantages

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Flags, Scope, TurnTable

__all__ = ["NodeValues", "TreeRL", "node_values"]


class NodeValues(NamedTuple):
    """Values of the turns, float64 ``[N]`` each; 0 on turns that are not scored."""

    value: Doubles
    """V: mean outcome of the scored attempts below, minus the lowest outcome of the group, so that
    equal outcomes give exact zeros; differences of values are not affected."""
    above: Doubles
    """V of the parent, or of the root for a first turn."""
    root: Doubles
    """V of the group's root."""
    leaves: Doubles
    """Number of scored attempts below."""


def node_values(table: TurnTable) -> NodeValues:
    """Return the value of every turn of every group's tree.

    Raises:
        InvalidInput: a scored attempt belongs to none of the table's groups.
    """
    counted, groups = grouped_attempts(table)
    size = len(table.groups)
    low = np.full(size, np.inf)
    np.minimum.at(low, groups, table.attempt_score[counted])
    shifted = np.zeros(table.attempt_score.size)
    shifted[counted] = table.attempt_score[counted] - low[groups]
    mean = np.zeros(size)
    mean[groups] = group_moments(shifted[counted], groups).mean
    value = table.spread(shifted)
    root = np.where(table.scored, mean[table.group] if size else 0.0, 0.0)
    above = np.where(table.parent < 0, root, value[table.parent])
    leaves = table.spread(np.ones(shifted.size), "sum")
    return NodeValues(value, np.where(table.scored, above, 0.0), root, leaves)


class TreeRL(Deriver):
    """TreeRL (arXiv 2506.11902): ``R(s) = (G_A + L_A) / sqrt(leaves)`` as the advantage of a turn.

    V(s) is the mean outcome of the attempts below turn s; the root is the prompt, above all trees
    of the group. ``G_A = V(s) - V(root)``, ``L_A = V(s) - V(parent)``, both divided by the square
    root of the number of leaves below s. The formula is interpreted as two later works quote it.

    Attributes:
        variant: ``paper``: as above. ``official`` (THUDM/TreeRL, its training script): outcomes
            minus the mean of the other leaves; every node's mean is divided by the square root of
            its leaves *before* the subtraction; a local term below 1e-8 is replaced by the
            parent's; the root's value is 0. A group of one leaf, where that code fails, gives 0.
        weight: ``none`` omits the division by the square root.
        state_value: whether to include the global term.
        repeat: multiply by the number of leaves below. The released code trains a shared turn once
            per leaf; here it is trained once.
    """

    name = "treerl"
    depends_on: ClassVar[Scope] = "group"
    group_relative = True

    variant: Literal["paper", "official"] = "paper"
    weight: Literal["sqrt", "none"] = "sqrt"
    state_value: bool = True
    repeat: bool = False

    def derive(self, table: TurnTable) -> Advantages:
        """Return the node value of every scored turn."""
        return Advantages(table, sum_terms(self.terms(table)), self.stamp)

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms ``local`` and ``global``."""
        return self.node_terms(table)

    def node_terms(self, table: TurnTable, kept: Flags | None = None) -> dict[str, Doubles]:
        """Return the terms ``local`` and ``global``.

        Args:
            table: the turns.
            kept: bool ``[A]``, the leaves that will be trained; the official weighting counts
                only those below a node, although all leaves contribute to its value.
        """
        nodes = node_values(table)
        if self.variant == "paper":
            local, over_all = nodes.value - nodes.above, nodes.value - nodes.root
            scale = self._scale(nodes.leaves)
            parts = {"local": local / scale, "global": over_all / scale}
        else:
            parts = self._official(table, nodes, kept)
        if not self.state_value:
            del parts["global"]
        if self.repeat:
            parts = {name: part * nodes.leaves for name, part in parts.items()}
        return {name: np.where(table.scored, part, 0.0) for name, part in parts.items()}

    def _scale(self, leaves: Doubles) -> Doubles:
        return np.ones(leaves.size) if self.weight == "none" else np.sqrt(np.maximum(leaves, 1.0))

    def _official(
        self, table: TurnTable, nodes: NodeValues, kept: Flags | None
    ) -> dict[str, Doubles]:
        groups = table.attempt_group[table.attempt_scored]
        sizes = np.bincount(groups, minlength=len(table.groups))
        # score - mean of the others = (score - mean of all) * n / (n - 1), in every mean of them.
        factor = np.where(sizes > 1, sizes / np.maximum(sizes - 1, 1), 0.0)
        below = nodes.leaves
        if kept is not None:
            below = table.spread(kept.astype(np.float64), "sum")
        value = np.zeros(len(table))
        value[table.scored] = factor[table.group[table.scored]]
        value *= (nodes.value - nodes.root) / self._scale(below)
        above = np.where(table.parent < 0, 0.0, value[table.parent])
        return {"local": _filled(table, value - above), "global": value}


def _filled(table: TurnTable, local: Doubles) -> Doubles:
    """Replace negligible values by the parent's, from the root down."""
    same = np.flatnonzero((np.abs(local) < 1e-8) & (table.parent >= 0))
    same = same[np.argsort(table.depth[same], kind="stable")]
    depths = table.depth[same]
    for level in np.split(same, np.flatnonzero(np.diff(depths)) + 1):
        local[level] = local[table.parent[level]]
    return local
