"""TRL: training on sessions while they run, and data sets from a store.

TRL, torch and datasets are imported only by the functions that need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters.trl._buffer import SampleBuffer
from trajgym.adapters.trl._check import check_trainer
from trajgym.adapters.trl._feed_worker import FeedWorker
from trajgym.adapters.trl._group_samples import Tally
from trajgym.adapters.trl._offline import (
    kto_dataset,
    preference_dataset,
    prm_dataset,
    reward_dataset,
    sft_dataset,
    sft_token_dataset,
)
from trajgym.adapters.trl._parity import Parity, check_logprobs
from trajgym.adapters.trl._processes import MakeWorker, RolloutProcesses
from trajgym.adapters.trl._samples import Form, rollout_samples
from trajgym.adapters.trl._session_rollouts import GRPORollouts
from trajgym.adapters.trl._versions import VersionClock, WatchedTransfer
from trajgym.adapters.trl._worker import RolloutWorker
from trajgym.rollout.fleet import Shard
from trajgym.trajectory._internal import moved_names

if TYPE_CHECKING:
    from trajgym.adapters.trl._step import StepGRPOTrainer

__all__ = [
    "FeedWorker",
    "Form",
    "GRPORollouts",
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
    "check_trainer",
    "kto_dataset",
    "preference_dataset",
    "prm_dataset",
    "reward_dataset",
    "rollout_samples",
    "sft_dataset",
    "sft_token_dataset",
]


_moved = moved_names(__name__, GRPOSpec="trajgym.adapters.trl:GRPORollouts")


def __getattr__(name: str) -> Any:
    """Import the subclasses of TRL's classes on first access: importing TRL takes seconds."""
    if name == "StepGRPOTrainer":
        from trajgym.adapters.trl._step import StepGRPOTrainer

        return StepGRPOTrainer
    return _moved(name)
