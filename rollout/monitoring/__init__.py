"""Live figures of a run that is being written, for terminals and for Prometheus."""

from trajgym.rollout.monitoring._exposition import family, histogram, single
from trajgym.rollout.monitoring._live import STALENESS, LiveFigures, LiveView, exposition

__all__ = ["STALENESS", "LiveFigures", "LiveView", "exposition", "family", "histogram", "single"]
