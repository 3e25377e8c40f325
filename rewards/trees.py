"""Tree rollouts: where to fork, budgets of trees, and Tree-GRPO's node scores."""

from trajgym.rewards._forks import ForkPoint, branch_probability, eptree_leaves, fork_points
from trajgym.rewards._tree_grpo import TreeBudget, tree_budget, tree_diff_scores

__all__ = [
    "ForkPoint",
    "TreeBudget",
    "branch_probability",
    "eptree_leaves",
    "fork_points",
    "tree_budget",
    "tree_diff_scores",
]
