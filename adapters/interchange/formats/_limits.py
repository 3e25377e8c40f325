"""How SWE-agent and mini-swe-agent say that an attempt ended."""

from __future__ import annotations

import re

from trajgym.trajectory import Status

__all__ = ["ended"]

_LIMITS = {
    "LimitsExceeded": "turns",
    "TimeExceeded": "seconds",
    "exit_cost": "cost",
    "exit_context": "tokens",
    "exit_total_execution_time": "seconds",
    "exit_command_timeout": "seconds",
    "exit_format": "turns",
    "RepeatedFormatError": "turns",
}


def ended(exit_status: str) -> tuple[Status, str]:
    """Return status and cause for an exit status.

    Submissions, those after a limit included, are completed: the agent handed something in.
    """
    if re.match(r"submitted", exit_status, re.IGNORECASE):
        return Status("completed"), ""
    if exit_status in _LIMITS:
        return Status("truncated", _LIMITS[exit_status]), exit_status
    if not exit_status:
        return Status("interrupted"), "the file has no exit status"
    return Status("failed", "agent"), exit_status
