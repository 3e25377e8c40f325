"""Which verl this adapter works with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trajgym.trajectory import InvalidInput, MissingExtra

__all__ = ["need_verl"]

_KNOWN = (0, 9, 1)


def need_verl() -> None:
    """Refuse to go on without a verl whose interfaces are known.

    Raises:
        MissingExtra: verl is not installed.
        InvalidInput: it is another version than 0.9.1 or a later 0.9.
    """
    try:
        found = version("verl")
    except PackageNotFoundError as error:
        raise MissingExtra("verl", "verl") from error
    parts = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if parts[:2] != _KNOWN[:2] or parts < _KNOWN:
        raise InvalidInput(
            f"verl {found} is installed; this adapter was tested with 0.9.1: agent loops and "
            "trainers change between versions. Run: pip install 'trajgym[verl]'",
        )
