"""verl: sessions as its agent loop, our advantages in its trainers, recorded runs as its data.

What needs verl, torch or pyarrow imports it when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters._verl_engine import VerlEngine
from trajgym.adapters._verl_prompts import write_prompts
from trajgym.adapters._verl_replay import ReplayShape, write_replay
from trajgym.adapters._verl_settings import LoopSettings, Named, column_value
from trajgym.adapters._verl_sft import write_sft_messages
from trajgym.adapters._verl_tokens import write_sft_tokens

if TYPE_CHECKING:
    from trajgym.adapters._verl_dataset import TokenDataset
    from trajgym.adapters._verl_loop import DenseOutput, TrajgymAgentLoop
    from trajgym.adapters._verl_trainer import (
        StepColocateAsyncTrainer,
        StepSeparateAsyncTrainer,
        StepSyncTrainer,
        given_advantages,
    )

__all__ = [
    "DenseOutput",
    "LoopSettings",
    "Named",
    "ReplayShape",
    "RolloutFailed",
    "StepColocateAsyncTrainer",
    "StepSeparateAsyncTrainer",
    "StepSyncTrainer",
    "TokenDataset",
    "TrajgymAgentLoop",
    "VerlEngine",
    "column_value",
    "given_advantages",
    "write_prompts",
    "write_replay",
    "write_sft_messages",
    "write_sft_tokens",
]

_LATER = {
    "DenseOutput": "_verl_loop",
    "StepColocateAsyncTrainer": "_verl_trainer",
    "StepSeparateAsyncTrainer": "_verl_trainer",
    "StepSyncTrainer": "_verl_trainer",
    "TokenDataset": "_verl_dataset",
    "TrajgymAgentLoop": "_verl_loop",
    "given_advantages": "_verl_trainer",
}


def __getattr__(name: str) -> Any:
    """Import what needs verl only when it is asked for: verl takes seconds."""
    if name in _LATER:
        return getattr(import_module(f"trajgym.adapters.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
