"""The AReaL versions that this adapter supports."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

__all__ = ["areal_major", "need_areal"]

_log = logging.getLogger(__name__)
_TESTED = (1, 0)


def areal_major() -> int:
    """Return the major version of the installed AReaL.

    Raises:
        MissingExtra: AReaL is not installed.
    """
    try:
        return int(version("areal").split(".")[0])
    except PackageNotFoundError as error:
        raise MissingExtra("areal", "areal") from error


def need_areal() -> None:
    """Check that a supported version of AReaL is installed.

    Raises:
        MissingExtra: AReaL is not installed.
        InvalidInput: the installed version is older than 1.0.
    """
    if areal_major() < _TESTED[0]:
        raise InvalidInput(
            f"AReaL {version('areal')} is installed, but this adapter needs 1.0. "
            "Run: pip install 'trajgym[areal]'",
        )
    found = tuple(int(part) for part in version("areal").split(".")[:2])
    if found != _TESTED:
        _log.warning("AReaL %s: this adapter was tested with 1.0", version("areal"))
