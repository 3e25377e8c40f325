"""Derivers: what each turn of a recorded session was worth."""

from trajgym.rewards._apply import apply
from trajgym.rewards._check import check_deriver
from trajgym.rewards._deriver import Deriver, get_deriver, list_derivers
from trajgym.rewards._errors import DeriverFault, UnknownDeriver
from trajgym.rewards._grpo import GRPO
from trajgym.rewards._outcome import OutcomeReturn, OutcomeReward
from trajgym.rewards._table import PrefixRule, TurnTable
from trajgym.rewards._values import Advantages, Rewards

__all__ = [
    "GRPO",
    "Advantages",
    "Deriver",
    "DeriverFault",
    "OutcomeReturn",
    "OutcomeReward",
    "PrefixRule",
    "Rewards",
    "TurnTable",
    "UnknownDeriver",
    "apply",
    "check_deriver",
    "get_deriver",
    "list_derivers",
]
