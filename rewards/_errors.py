"""Exceptions of this package.

::

    TrajgymError
    ├── InvalidInput
    │   ├── UnknownDeriver       no deriver is registered under that name
    │   └── MissingSignals       sessions lack what a deriver reads, such as a judge's votes
    └── DeriverFault             a deriver breaks the contract that `check_deriver` checks
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput, TrajgymError

__all__ = ["DeriverFault", "MissingSignals", "UnknownDeriver"]


class UnknownDeriver(InvalidInput):
    """No deriver is registered under that name."""


class DeriverFault(TrajgymError):
    """A deriver breaks the contract of derivers; the message names the rule."""


class MissingSignals(InvalidInput):
    """Sessions lack what a deriver reads; the message names it, and how to add it."""
