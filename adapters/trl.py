"""TRL: its trainers fed with sessions, while they run or from a store.

What needs TRL, torch or datasets imports it when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._trl_buffer import SampleBuffer
from trajgym.adapters._trl_harvest import Tally
from trajgym.adapters._trl_offline import (
    kto_dataset,
    preference_dataset,
    prm_dataset,
    reward_dataset,
    sft_dataset,
    sft_token_dataset,
)
from trajgym.adapters._trl_parity import Parity, check_logprobs
from trajgym.adapters._trl_processes import MakeWorker, RolloutProcesses
from trajgym.adapters._trl_samples import Form, rollout_samples
from trajgym.adapters._trl_shard import Shard
from trajgym.adapters._trl_spec import GRPOSpec
from trajgym.adapters._trl_versions import VersionClock, WatchedTransfer
from trajgym.adapters._trl_worker import RolloutWorker

if TYPE_CHECKING:
    from trajgym.adapters._trl_step import StepGRPOTrainer

__all__ = [
    "Form",
    "GRPOSpec",
    "MakeWorker",
    "Parity",
    "RolloutFailed",
    "RolloutProcesses",
    "RolloutWorker",
    "SampleBuffer",
    "Shard",
    "StepGRPOTrainer",
    "Tally",
    "VersionClock",
    "WatchedTransfer",
    "check_logprobs",
    "kto_dataset",
    "preference_dataset",
    "prm_dataset",
    "reward_dataset",
    "rollout_samples",
    "sft_dataset",
    "sft_token_dataset",
]


def __getattr__(name: str) -> Any:
    """Import what subclasses TRL only when it is asked for: TRL takes seconds."""
    if name == "StepGRPOTrainer":
        from trajgym.adapters._trl_step import StepGRPOTrainer

        return StepGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
