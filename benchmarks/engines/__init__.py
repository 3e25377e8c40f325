"""The load of `bench_engines.py`, its clients, and the processes that they run in."""

from benchmarks.engines._child import run_child
from benchmarks.engines._load import MOST_SECONDS
from benchmarks.engines._process import Broken, Process

__all__ = ["MOST_SECONDS", "Broken", "Process", "run_child"]
