"""What ``verify`` returned, as an outcome."""

from __future__ import annotations

import math

from trajgym.trajectory import Outcome

__all__ = ["as_outcome"]


def as_outcome(verdict: object) -> Outcome:
    """Return the outcome that a verdict means.

    A bool is 1.0 or 0.0; a number passes if it is at least 1.

    Raises:
        TypeError: it is none of a number, a bool and an :class:`Outcome`.
        ValueError: the score is not finite.
    """
    if isinstance(verdict, Outcome):
        outcome = verdict
    elif isinstance(verdict, (bool, int, float)):
        outcome = Outcome(score=float(verdict), passed=float(verdict) >= 1.0)
    else:
        raise TypeError(
            f"verify() returned {type(verdict).__name__}; return a float, a bool or an Outcome",
        )
    if not math.isfinite(outcome.score):
        raise ValueError(f"verify() returned the score {outcome.score}; it must be finite")
    return outcome
