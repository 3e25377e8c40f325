"""Exceptions of this package.

::

    TrajgymError
    ├── InvalidInput
    │   ├── UnknownDeriver       no deriver is registered under that name
    │   └── MissingSignals       sessions lack what a deriver reads, such as a judge's votes
    └── DeriverFault             a deriver breaks the contract that `check_deriver` checks
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput, TrajgymError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DeriverFault", "MissingSignals", "UnknownDeriver"]


class UnknownDeriver(InvalidInput):
    """No deriver is registered under that name."""


class DeriverFault(TrajgymError):
    """A deriver breaks the contract of derivers; the message names the rule."""


class MissingSignals(InvalidInput):
    """Sessions lack what a deriver reads; the message names it, and how to add it.

    Attributes:
        lacking: number of sessions by what they lack, if that is known.
    """

    def __init__(self, message: str, lacking: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.lacking = dict(lacking or {})
