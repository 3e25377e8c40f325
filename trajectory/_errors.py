"""The root of all trajgym exceptions, and the exceptions of this package.

::

    TrajgymError
    ├── InvalidInput (ValueError)      bad data at a boundary; nothing was written
    │   ├── InvalidSession             turns that do not form a session tree
    │   └── InvalidRow                 a training row that a trainer would misread
    ├── ConformanceError               a checker found a broken rule of an interface
    ├── MissingExtra (ImportError)     an optional dependency is not installed
    └── StoreError
        ├── StoreLocked                another process writes this store
        ├── StoreCorrupt               the file is damaged or not a store
        └── StoreSchemaMismatch        written by another schema version

``trajgym.envs`` and ``trajgym.rollout`` add their own branches to this tree.
"""

from __future__ import annotations

__all__ = [
    "ConformanceError",
    "InvalidInput",
    "InvalidRow",
    "InvalidSession",
    "MissingExtra",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreNotBegun",
    "StoreSchemaMismatch",
    "TrajgymError",
]


class TrajgymError(Exception):
    """Base class of all exceptions that trajgym defines."""


class InvalidInput(TrajgymError, ValueError):
    """Data does not meet its contract; the message says where, and what to do."""


class InvalidSession(InvalidInput):
    """The turns do not form a session tree."""


class InvalidRow(InvalidInput):
    """A training row breaks an invariant that trainers rely on without checking it."""


class ConformanceError(TrajgymError):
    """An implementation breaks a rule of its interface; the message names it."""


class MissingExtra(TrajgymError, ImportError):
    """An optional dependency is not installed.

    Args:
        package: the distribution that could not be imported.
        extra: the trajgym extra that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package!r} is not installed; run: pip install 'trajgym[{extra}]'",
        )
        self.package = package
        self.extra = extra


class StoreError(TrajgymError):
    """A store could not be opened, read or written."""


class StoreLocked(StoreError):
    """Another process holds the write lock of this store."""


class StoreCorrupt(StoreError):
    """The file is damaged, truncated, or was never a store."""


class StoreNotBegun(StoreCorrupt):
    """The file is empty: its writer has not created its tables yet, or was killed before."""


class StoreSchemaMismatch(StoreError):
    """The store was written under a schema version that this library cannot read."""
