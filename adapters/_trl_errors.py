"""Which TRL this adapter works with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trajgym.trajectory import InvalidInput, MissingExtra

__all__ = ["need_trl"]

_KNOWN = (1, 16)


def need_trl() -> None:
    """Refuse to go on without a TRL whose interfaces are known.

    Raises:
        MissingExtra: TRL is not installed.
        InvalidInput: it is another version than 1.16.
    """
    try:
        found = version("trl")
    except PackageNotFoundError as error:
        raise MissingExtra("trl", "trl") from error
    if tuple(int(part) for part in found.split(".")[:2]) != _KNOWN:
        raise InvalidInput(
            f"TRL {found} is installed; this adapter was tested with 1.16: its trainers' inner "
            "interfaces change between versions. Run: pip install 'trajgym[trl]'",
        )
