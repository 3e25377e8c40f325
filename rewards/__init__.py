"""Derivers: what each turn of a recorded session was worth."""

from trajgym.rewards._apply import apply
from trajgym.rewards._certificate import CertificateReward
from trajgym.rewards._check import check_deriver
from trajgym.rewards._deriver import Deriver, get_deriver, list_derivers
from trajgym.rewards._errors import DeriverFault, UnknownDeriver
from trajgym.rewards._estimator import Estimator, earned
from trajgym.rewards._explain import Explained, explain
from trajgym.rewards._filters import DynamicSampling, Filter, Kept, SpreadFilter, ZeroAdvantage
from trajgym.rewards._forks import ForkPoint, branch_probability, eptree_leaves, fork_points
from trajgym.rewards._gae import GAE, TurnGAE, adaptive_lambda, gae, gae_row, whiten
from trajgym.rewards._gigpo import GiGPO
from trajgym.rewards._grpo import GRPO
from trajgym.rewards._hgpo import HGPO
from trajgym.rewards._igpo import (
    IGPO,
    InformationGain,
    belief,
    belief_change,
    igpo_token_advantages,
)
from trajgym.rewards._length import SoftOverlong, StepPenalty
from trajgym.rewards._matcher import SimilarityMatcher, similarity
from trajgym.rewards._ms_grpo import MSGRPO
from trajgym.rewards._mt_grpo import MTGRPO
from trajgym.rewards._next_state import DirectiveHints, NextStateVotes, VoteRewards
from trajgym.rewards._outcome import OutcomeReturn, OutcomeReward, StepReward
from trajgym.rewards._plot import plot_group, plot_tree
from trajgym.rewards._returns import ReturnToGo, Stepwise
from trajgym.rewards._rloo import RLOO
from trajgym.rewards._roc import (
    GRPORoC,
    Penalty,
    ResampleOnCorrect,
    attempt_penalties,
    inverse_probabilities,
    resample,
    text_penalty,
    wanted_counts,
)
from trajgym.rewards._srl import SRL
from trajgym.rewards._table import SPAN_KINDS, PrefixRule, Signal, Texts, TurnTable
from trajgym.rewards._toolpo import ToolPO
from trajgym.rewards._tools import ToolCalls
from trajgym.rewards._tree_grpo import TreeBudget, TreeGRPO, tree_budget, tree_diff_scores
from trajgym.rewards._treerl import TreeRL
from trajgym.rewards._values import Advantages, Rewards

__all__ = [
    "GAE",
    "GRPO",
    "HGPO",
    "IGPO",
    "MSGRPO",
    "MTGRPO",
    "RLOO",
    "SPAN_KINDS",
    "SRL",
    "Advantages",
    "CertificateReward",
    "Deriver",
    "DeriverFault",
    "DirectiveHints",
    "DynamicSampling",
    "Estimator",
    "Explained",
    "Filter",
    "ForkPoint",
    "GRPORoC",
    "GiGPO",
    "InformationGain",
    "Kept",
    "NextStateVotes",
    "OutcomeReturn",
    "OutcomeReward",
    "Penalty",
    "PrefixRule",
    "ResampleOnCorrect",
    "ReturnToGo",
    "Rewards",
    "Signal",
    "SimilarityMatcher",
    "SoftOverlong",
    "SpreadFilter",
    "StepPenalty",
    "StepReward",
    "Stepwise",
    "Texts",
    "ToolCalls",
    "ToolPO",
    "TreeBudget",
    "TreeGRPO",
    "TreeRL",
    "TurnGAE",
    "TurnTable",
    "UnknownDeriver",
    "VoteRewards",
    "ZeroAdvantage",
    "adaptive_lambda",
    "apply",
    "attempt_penalties",
    "belief",
    "belief_change",
    "branch_probability",
    "check_deriver",
    "earned",
    "eptree_leaves",
    "explain",
    "fork_points",
    "gae",
    "gae_row",
    "get_deriver",
    "igpo_token_advantages",
    "inverse_probabilities",
    "list_derivers",
    "plot_group",
    "plot_tree",
    "resample",
    "similarity",
    "text_penalty",
    "tree_budget",
    "tree_diff_scores",
    "wanted_counts",
    "whiten",
]
