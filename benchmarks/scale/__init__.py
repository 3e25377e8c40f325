"""A simulation of collection at sizes that no test machine has, and its calibration."""

from benchmarks.scale._calibrate import Costs, measure
from benchmarks.scale._model import Cluster, Found, Workload, simulate

__all__ = ["Cluster", "Costs", "Found", "Workload", "measure", "simulate"]
