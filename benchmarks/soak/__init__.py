"""A long collection in real sandboxes, with failures of every part, whose totals are compared."""

from benchmarks.soak._faults import Chaos
from benchmarks.soak._machine import Machine, Sample, slope
from benchmarks.soak._plan import Plan
from benchmarks.soak._totals import Acknowledged, compare, left_behind
from benchmarks.soak._world import make_tasks

__all__ = [
    "Acknowledged",
    "Chaos",
    "Machine",
    "Plan",
    "Sample",
    "compare",
    "left_behind",
    "make_tasks",
    "slope",
]
