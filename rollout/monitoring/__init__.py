"""Live figures of a run that is being written, for terminals and for Prometheus, and its log."""

from trajgym.rollout.monitoring._exposition import family, histogram, single
from trajgym.rollout.monitoring._live import STALENESS, LiveFigures, LiveView, exposition
from trajgym.rollout.monitoring._logs import JsonLines, log_as_asked, log_to

__all__ = [
    "STALENESS",
    "JsonLines",
    "LiveFigures",
    "LiveView",
    "exposition",
    "family",
    "histogram",
    "log_as_asked",
    "log_to",
    "single",
]
