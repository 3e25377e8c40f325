"""Driving sessions: policies, engines, renderers and the runner."""

from trajgym.rollout._collect import CollectReport, collect
from trajgym.rollout._engine import Generation, TokenEngine
from trajgym.rollout._policy import (
    Policy,
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyRequest,
    PolicyUnavailable,
)
from trajgym.rollout._runner import Progress, Runner, SealedGroup, group_id

__all__ = [
    "CollectReport",
    "Generation",
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
    "Progress",
    "Runner",
    "SealedGroup",
    "TokenEngine",
    "collect",
    "group_id",
]
