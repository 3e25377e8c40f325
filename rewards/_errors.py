"""Errors of rewards.

::

    TrajgymError
    ├── InvalidInput
    │   └── UnknownDeriver       no deriver is registered under that name
    └── DeriverFault             a deriver breaks the contract that `check_deriver` checks
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput, TrajgymError

__all__ = ["DeriverFault", "UnknownDeriver"]


class UnknownDeriver(InvalidInput):
    """No deriver is registered under that name."""


class DeriverFault(TrajgymError):
    """A deriver does not keep the contract of derivers; the message says which part."""
