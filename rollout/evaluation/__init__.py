"""Evaluation: summaries and comparisons of recorded runs."""

from trajgym.rollout.evaluation._estimates import (
    Counts,
    Difference,
    Interval,
    paired_difference,
    pass_at,
    pass_hat,
    solved,
)
from trajgym.rollout.evaluation._meter import CostMeter, Spent
from trajgym.rollout.evaluation._prices import Price, Prices
from trajgym.rollout.evaluation._summary import EvalSummary, GroupSummary, summarize

__all__ = [
    "CostMeter",
    "Counts",
    "Difference",
    "EvalSummary",
    "GroupSummary",
    "Interval",
    "Price",
    "Prices",
    "Spent",
    "paired_difference",
    "pass_at",
    "pass_hat",
    "solved",
    "summarize",
]
