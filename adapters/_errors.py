"""Errors of exports: `UnknownExport` is an `InvalidInput`, like every refusal of bad input here."""

from __future__ import annotations

from trajgym.trajectory import InvalidInput

__all__ = ["UnknownExport"]


class UnknownExport(InvalidInput):
    """There is no export of that name."""
