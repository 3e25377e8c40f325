"""The TRL versions that this adapter supports."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

__all__ = ["need_trl"]

_KNOWN = (1, 16)


def need_trl() -> None:
    """Check that a supported version of TRL is installed.

    Raises:
        MissingExtra: TRL is not installed.
        InvalidInput: the installed version is not 1.16.
    """
    try:
        found = version("trl")
    except PackageNotFoundError as error:
        raise MissingExtra("trl", "trl") from error
    if tuple(int(part) for part in found.split(".")[:2]) != _KNOWN:
        raise InvalidInput(
            f"TRL {found} is installed, but this adapter supports 1.16 only: it uses interfaces "
            "that change between versions. Run: pip install 'trajgym[trl]'",
        )
