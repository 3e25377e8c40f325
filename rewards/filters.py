"""Filters that choose attempts for training, and the parts of resample-on-correct."""

from trajgym.rewards._filters import DynamicSampling, Filter, Kept, SpreadFilter, ZeroAdvantage
from trajgym.rewards._roc import (
    Penalty,
    ResampleOnCorrect,
    attempt_penalties,
    inverse_probabilities,
    resample,
    text_penalty,
    wanted_counts,
)

__all__ = [
    "DynamicSampling",
    "Filter",
    "Kept",
    "Penalty",
    "ResampleOnCorrect",
    "SpreadFilter",
    "ZeroAdvantage",
    "attempt_penalties",
    "inverse_probabilities",
    "resample",
    "text_penalty",
    "wanted_counts",
]
