"""The verl versions that this adapter supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

__all__ = ["need_verl"]

_KNOWN = (0, 9, 1)


def need_verl() -> None:
    """Check that a supported version of verl is installed.

    Raises:
        MissingExtra: verl is not installed.
        InvalidInput: the installed version is not 0.9.1 or a later 0.9.
    """
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise MissingExtra("verl", "verl") from error
    parts = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if parts[:2] != _KNOWN[:2] or parts < _KNOWN:
        raise InvalidInput(
            f"verl {found} is installed, but this adapter supports 0.9.1 and later 0.9 only: agent "
            "loops and trainers change between versions. Run: pip install 'trajgym[verl]'",
        )
