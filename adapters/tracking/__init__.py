"""Metrics of a run, sent to experiment trackers while it is collected.

::

    with Tracking(open_tracker("tensorboard", directory="logs"), name="first") as tracking:
        await collect(spec, tasks, policy, out, on_progress=tracking.note)
"""

from trajgym.adapters.tracking._base import Tracker, list_trackers, open_tracker
from trajgym.adapters.tracking._metrics import RunMetrics
from trajgym.adapters.tracking._tracking import Tracking

__all__ = ["RunMetrics", "Tracker", "Tracking", "list_trackers", "open_tracker"]
