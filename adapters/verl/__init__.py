"""verl: an agent loop that runs sessions, trainers with derived advantages, and data sets.

verl, torch and pyarrow are imported only by the functions that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters.verl._engine import VerlEngine
from trajgym.adapters.verl._prompts import write_prompts
from trajgym.adapters.verl._replay import ReplayShape, write_replay
from trajgym.adapters.verl._settings import FeedSettings, LoopSettings, Named, column_value
from trajgym.adapters.verl._sft import write_sft_messages
from trajgym.adapters.verl._tokens import write_sft_tokens

if TYPE_CHECKING:
    from trajgym.adapters.verl._dataset import TokenDataset
    from trajgym.adapters.verl._loop import DenseOutput, TrajgymAgentLoop
    from trajgym.adapters.verl._trainer import (
        StepColocateAsyncTrainer,
        StepSeparateAsyncTrainer,
        StepSyncTrainer,
        given_advantages,
    )

__all__ = [
    "DenseOutput",
    "FeedSettings",
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
    "DenseOutput": "_loop",
    "StepColocateAsyncTrainer": "_trainer",
    "StepSeparateAsyncTrainer": "_trainer",
    "StepSyncTrainer": "_trainer",
    "TokenDataset": "_dataset",
    "TrajgymAgentLoop": "_loop",
    "given_advantages": "_trainer",
}


def __getattr__(name: str) -> Any:
    """Import the objects that need verl on first access: importing verl takes seconds."""
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
