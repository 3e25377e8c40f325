"""How many sessions a run may have at the same time, recorded for those who watch it."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["SLOTS", "Slots"]

SLOTS = "slots"
"""Key of the entry in a run's metadata."""


class Slots(NamedTuple):
    """The places for sessions that a run has, of its last call.

    Args:
        sessions: how many may run at the same time.
        since: Unix time (s) at which the call began.
    """

    sessions: int
    since: float

    def to_text(self) -> str:
        """Return it as the value of a metadata entry."""
        return json.dumps(self._asdict())

    @classmethod
    def of_text(cls, text: str) -> Slots:
        """Return what :meth:`to_text` wrote."""
        return cls(**json.loads(text))
