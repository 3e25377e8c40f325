"""The table of docs/settings.md, which tests in each trainer's environment go through."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

_PAGE = Path(__file__).parent.parent.parent / "docs" / "settings.md"
_GIVEN = re.compile(r"(?:with|and) `([\w.]+): ([^`]+)`")
_ROW = re.compile(r"^\| (\w+) \| `([^`]+)` \| `([^`]+)` \| (.+) \| `([\w-]+)` \| (\w+) \|$", re.M)


class Setting(NamedTuple):
    """One row of the table; ``given`` has the settings without which it has no effect."""

    trainer: str
    key: str
    value: Any
    code: str
    shown: str
    given: dict[str, Any]

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.key.rpartition(".")[2]


def settings(trainer: str = "", shown: str = "") -> list[Setting]:
    """Return the rows of a trainer that are shown by ``gradient`` or ``rows``; all by default."""
    rows = [
        Setting(name, key, json.loads(value), code, how, _given(effect))
        for name, key, value, effect, code, how in _ROW.findall(_PAGE.read_text())
    ]
    return [
        r for r in rows if r.trainer == (trainer or r.trainer) and r.shown == (shown or r.shown)
    ]


def _given(effect: str) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in _GIVEN.findall(effect)}
