"""Rules of a run beside a trainer: what is admitted, what is too old, and what is enough."""

from trajgym.rollout.rules._admission import Admission, Capacity
from trajgym.rollout.rules._groups import SURPLUS, Enough, Outdated
from trajgym.rollout.rules._interrupt import Ending, Interrupt, Interrupted

__all__ = [
    "SURPLUS",
    "Admission",
    "Capacity",
    "Ending",
    "Enough",
    "Interrupt",
    "Interrupted",
    "Outdated",
]
