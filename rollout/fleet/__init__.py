"""Sessions in several processes: tasks in, sealed groups out, one run."""

from trajgym.rollout.fleet._collect import collect_in_processes
from trajgym.rollout.fleet._errors import FleetFailed
from trajgym.rollout.fleet._fleet import Fleet
from trajgym.rollout.fleet._handling import GroupHandler, Handled
from trajgym.rollout.fleet._limits import FleetLimits
from trajgym.rollout.fleet._shard import Shard

__all__ = [
    "Fleet",
    "FleetFailed",
    "FleetLimits",
    "GroupHandler",
    "Handled",
    "Shard",
    "collect_in_processes",
]
