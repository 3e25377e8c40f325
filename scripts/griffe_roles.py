"""Conversion of docstrings to Markdown: roles and literal blocks are rewritten for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(~?)([^`]+)`")
_BLOCK = re.compile(r"(\S?)::\n(?=\n +\S)")


def _name(match: re.Match[str]) -> str:
    short, name = match.groups()
    return f"`{name.rpartition('.')[2] if short else name}`"


class Roles(griffe.Extension):
    """Replaces roles such as ``:class:`~package.Name` `` by code, and ``::`` before a block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of each object after it has been read."""
        if obj.docstring is not None:
            text = _ROLE.sub(_name, obj.docstring.value)
            obj.docstring.value = _BLOCK.sub(lambda m: f"{m[1]}:\n" if m[1] else "\n", text)
