"""Errors of exports and trainers.

::

    TrajgymError
    ├── InvalidInput
    │   └── UnknownExport        there is no export of that name
    └── RolloutFailed            sessions for a trainer can't go on; the cause is attached
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput, TrajgymError

__all__ = ["RolloutFailed", "UnknownExport"]


class UnknownExport(InvalidInput):
    """There is no export of that name."""


class RolloutFailed(TrajgymError):
    """Sessions for a trainer can't go on; the cause is attached."""
