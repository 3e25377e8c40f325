"""Driving sessions: policies, engines, renderers and the runner."""

from trajgym.rollout._engine import Generation, TokenEngine
from trajgym.rollout._policy import (
    Policy,
    PolicyError,
    PolicyGarbage,
    PolicyRejected,
    PolicyRequest,
    PolicyUnavailable,
)

__all__ = [
    "Generation",
    "Policy",
    "PolicyError",
    "PolicyGarbage",
    "PolicyRejected",
    "PolicyRequest",
    "PolicyUnavailable",
    "TokenEngine",
]
