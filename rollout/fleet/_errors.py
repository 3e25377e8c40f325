"""Errors of a fleet."""

from __future__ import annotations

from trajgym.trajectory import TrajgymError

__all__ = ["FleetFailed"]


class FleetFailed(TrajgymError):
    """The processes of a fleet can't be started, or one failed with an error of its own."""
