"""Errors of SWE tasks.

::

    TrajgymError
    ├── InvalidTask (InvalidInput)    a record or recipe that can't be used; names record and field
    └── SourceUnavailable             sources could not be fetched, or differ from their hashes
"""

from __future__ import annotations

from trajgym.trajectory import InvalidInput, TrajgymError

__all__ = ["InvalidTask", "SourceUnavailable"]


class InvalidTask(InvalidInput):
    """A task record or recipe is invalid."""


class SourceUnavailable(TrajgymError):
    """A source archive can't be fetched from the package index, or its hash differs."""
