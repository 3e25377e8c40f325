"""AReaL: its fully asynchronous trainer fed with sessions, while they run or from a store.

What needs AReaL or torch imports it when it is used: importing AReaL takes a quarter of a minute.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trajgym.adapters._areal_agent import EnvAgent, ExternalAgent
from trajgym.adapters._areal_engine import ArealEngine
from trajgym.adapters._areal_tasks import replay_dataset, task_dataset
from trajgym.adapters._areal_tensors import areal_tensors
from trajgym.adapters._errors import RolloutFailed

if TYPE_CHECKING:
    from trajgym.adapters._areal_replay import ReplayWorkflow
    from trajgym.adapters._areal_workflow import TrajgymWorkflow

__all__ = [
    "ArealEngine",
    "EnvAgent",
    "ExternalAgent",
    "ReplayWorkflow",
    "RolloutFailed",
    "TrajgymWorkflow",
    "areal_tensors",
    "replay_dataset",
    "task_dataset",
]

_LAZY = {"ReplayWorkflow": "_areal_replay", "TrajgymWorkflow": "_areal_workflow"}


def __getattr__(name: str) -> Any:
    """Import what subclasses AReaL's classes only when it is asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"trajgym.adapters.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
