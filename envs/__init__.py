"""Environments and sessions."""

from trajgym.envs._errors import (
    EnvironmentFault,
    ForkDiverged,
    SessionEnded,
    ToolError,
    Truncate,
    Unforkable,
    UnknownEnv,
)
from trajgym.envs._reply import Reply, Sampled, TurnLimits

__all__ = [
    "EnvironmentFault",
    "ForkDiverged",
    "Reply",
    "Sampled",
    "SessionEnded",
    "ToolError",
    "Truncate",
    "TurnLimits",
    "Unforkable",
    "UnknownEnv",
]
