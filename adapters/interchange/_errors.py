"""Errors of interchange.

::

    InvalidInput
    └── UnknownFormat        there is no format of that name
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput

__all__ = ["UnknownFormat"]


class UnknownFormat(InvalidInput):
    """There is no format of that name."""
