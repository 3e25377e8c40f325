"""Derivers: rewards and advantages for the turns of recorded sessions.

Submodules: :mod:`~trajgym.rewards.filters` (choosing attempts for training),
:mod:`~trajgym.rewards.tokens` (advantages over tokens), :mod:`~trajgym.rewards.trees` (budgets and
scores of tree rollouts) and :mod:`~trajgym.rewards.toolkit` (for authors of derivers).
"""

import typing as _typing

from trajgym.rewards._apply import apply
from trajgym.rewards._certificate import CertificateReward
from trajgym.rewards._check import check_deriver, probe_deriver
from trajgym.rewards._combined import DeriverSpec, Estimated, WeightedSum, as_deriver
from trajgym.rewards._deriver import Deriver, get_deriver, list_derivers
from trajgym.rewards._errors import DeriverFault, MissingSignals, UnknownDeriver
from trajgym.rewards._estimator import Estimator, compares_sessions, earned
from trajgym.rewards._explain import explain
from trajgym.rewards._gae import TurnGAE
from trajgym.rewards._gigpo import GiGPO
from trajgym.rewards._grpo import GRPO
from trajgym.rewards._hgpo import HGPO
from trajgym.rewards._igpo import IGPO, InformationGain
from trajgym.rewards._length import SoftOverlong, StepPenalty
from trajgym.rewards._ms_grpo import MSGRPO
from trajgym.rewards._mt_grpo import MTGRPO
from trajgym.rewards._next_state import DirectiveHints, NextStateVotes, VoteRewards
from trajgym.rewards._outcome import OutcomeReturn, OutcomeReward, StepReward
from trajgym.rewards._plot import plot_group, plot_tree
from trajgym.rewards._progress import SignalProgress
from trajgym.rewards._returns import ReturnToGo, Stepwise
from trajgym.rewards._rloo import RLOO
from trajgym.rewards._roc import GRPORoC
from trajgym.rewards._run_values import RunValues, derive_run, derive_scope
from trajgym.rewards._srl import SRL
from trajgym.rewards._table import TurnTable
from trajgym.rewards._toolpo import ToolPO
from trajgym.rewards._tools import ToolCalls
from trajgym.rewards._tree_grpo import TreeGRPO
from trajgym.rewards._treerl import TreeRL
from trajgym.rewards._values import Advantages, Rewards
from trajgym.trajectory._deprecated import moved_names as _moved_names

__all__ = [
    "GRPO",
    "HGPO",
    "IGPO",
    "MSGRPO",
    "MTGRPO",
    "RLOO",
    "SRL",
    "Advantages",
    "CertificateReward",
    "Deriver",
    "DeriverFault",
    "DeriverSpec",
    "DirectiveHints",
    "Estimated",
    "Estimator",
    "GRPORoC",
    "GiGPO",
    "InformationGain",
    "MissingSignals",
    "NextStateVotes",
    "OutcomeReturn",
    "OutcomeReward",
    "ReturnToGo",
    "Rewards",
    "RunValues",
    "SignalProgress",
    "SoftOverlong",
    "StepPenalty",
    "StepReward",
    "Stepwise",
    "ToolCalls",
    "ToolPO",
    "TreeGRPO",
    "TreeRL",
    "TurnGAE",
    "TurnTable",
    "UnknownDeriver",
    "VoteRewards",
    "WeightedSum",
    "apply",
    "as_deriver",
    "check_deriver",
    "compares_sessions",
    "derive_run",
    "derive_scope",
    "earned",
    "explain",
    "get_deriver",
    "list_derivers",
    "plot_group",
    "plot_tree",
    "probe_deriver",
]

if not _typing.TYPE_CHECKING:  # type checkers report the former names as missing
    __getattr__ = _moved_names(
        __name__,
        "trajgym.rewards.filters",
        "trajgym.rewards.tokens",
        "trajgym.rewards.toolkit",
        "trajgym.rewards.trees",
    )
