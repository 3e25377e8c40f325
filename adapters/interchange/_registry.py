"""Formats by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trajgym.adapters.interchange._errors import UnknownFormat

if TYPE_CHECKING:
    from trajgym.adapters.interchange._format import Format

__all__ = ["get_format", "list_formats"]

_FORMATS = {
    "atif": "atif",
    "atropos": "atropos",
    "inspect": "inspect",
    "mini-swe-agent": "_mini",
    "openai-chat": "_openai_chat",
    "openenv": "_openenv",
    "openhands": "_openhands",
    "sharegpt": "_sharegpt",
    "swe-agent": "_swe_agent",
    "verifiers": "verifiers",
}
"""Module by name; imported on first use."""


def list_formats() -> list[str]:
    """Return the names of the formats that can be imported, sorted."""
    return sorted(_FORMATS)


def get_format(name: str) -> Format:
    """Return a format.

    Raises:
        UnknownFormat: there is no format of that name.
    """
    if name not in _FORMATS:
        raise UnknownFormat(f"no format {name!r}; there are {', '.join(list_formats())}")
    module = import_module(f"trajgym.adapters.interchange.formats.{_FORMATS[name]}")
    found: Format = module.FORMAT
    return found
