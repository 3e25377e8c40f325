"""TRL: its trainers fed with sessions, while they run or from a store.

What needs TRL, torch or datasets imports it when it is used.
"""

from __future__ import annotations

from trajgym.adapters._trl_buffer import SampleBuffer
from trajgym.adapters._trl_errors import RolloutFailed
from trajgym.adapters._trl_harvest import Tally
from trajgym.adapters._trl_samples import Form, rollout_samples
from trajgym.adapters._trl_versions import VersionClock, WatchedTransfer
from trajgym.adapters._trl_worker import RolloutWorker

__all__ = [
    "Form",
    "RolloutFailed",
    "RolloutWorker",
    "SampleBuffer",
    "Tally",
    "VersionClock",
    "WatchedTransfer",
    "rollout_samples",
]
