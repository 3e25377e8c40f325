"""Errors of exports and trainers.

::

    TrajgymError
    ├── InvalidInput
    │   └── UnknownExport        there is no export of that name
    └── RolloutFailed            no more sessions can be run for a trainer
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput, TrajgymError

__all__ = ["RolloutFailed", "UnknownExport"]


class UnknownExport(InvalidInput):
    """There is no export of that name."""


class RolloutFailed(TrajgymError):
    """No more sessions can be run for a trainer; ``__cause__`` is the reason where there is one."""
