"""For authors of derivers: the parts of the table, and functions that derivers share."""

from trajgym.rewards._estimator import earned
from trajgym.rewards._explain import Explained
from trajgym.rewards._igpo import belief, belief_change
from trajgym.rewards._matcher import SimilarityMatcher, similarity
from trajgym.rewards._table import SPAN_KINDS, PrefixRule, Scope, Signal, Texts

__all__ = [
    "SPAN_KINDS",
    "Explained",
    "PrefixRule",
    "Scope",
    "Signal",
    "SimilarityMatcher",
    "Texts",
    "belief",
    "belief_change",
    "earned",
    "similarity",
]
