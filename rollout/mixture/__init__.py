"""Several environments in one run: weights, limits, and curricula over their tasks."""

from trajgym.rollout.mixture._curriculum import Curriculum, TaskRecord
from trajgym.rollout.mixture._draws import Draws, PartCounts
from trajgym.rollout.mixture._mixture import Mixture, Part
from trajgym.rollout.mixture._toml import Tables, load_mixture, read_tables

__all__ = [
    "Curriculum",
    "Draws",
    "Mixture",
    "Part",
    "PartCounts",
    "Tables",
    "TaskRecord",
    "load_mixture",
    "read_tables",
]
