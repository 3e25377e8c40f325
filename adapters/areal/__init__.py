"""AReaL: asynchronous training on sessions while they run, or from a store.

AReaL and torch are imported only by the functions that need them; importing AReaL takes 15 seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trajgym.adapters._errors import RolloutFailed
from trajgym.adapters.areal._agent import EnvAgent, ExternalAgent
from trajgym.adapters.areal._arguments import workflow_kwargs
from trajgym.adapters.areal._engine import ArealEngine
from trajgym.adapters.areal._tasks import feed_dataset, replay_dataset, task_dataset
from trajgym.adapters.areal._tensors import areal_tensors

if TYPE_CHECKING:
    from trajgym.adapters.areal._feed import FeedWorkflow
    from trajgym.adapters.areal._replay import ReplayWorkflow
    from trajgym.adapters.areal._workflow import TrajgymWorkflow

__all__ = [
    "ArealEngine",
    "EnvAgent",
    "ExternalAgent",
    "FeedWorkflow",
    "ReplayWorkflow",
    "RolloutFailed",
    "TrajgymWorkflow",
    "areal_tensors",
    "feed_dataset",
    "replay_dataset",
    "task_dataset",
    "workflow_kwargs",
]

_LAZY = {
    "FeedWorkflow": "_feed",
    "ReplayWorkflow": "_replay",
    "TrajgymWorkflow": "_workflow",
}


def __getattr__(name: str) -> Any:
    """Import the subclasses of AReaL's classes on first access."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
