"""Rewards for tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._values import Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Scope, TurnTable

__all__ = ["ToolCalls"]


class ToolCalls(Deriver):
    """A reward for every tool call that succeeded, and one for every call that failed.

    Attributes:
        ok: reward of each call that succeeded.
        failed: reward of each call with an error, invalid arguments or a timeout.
    """

    name = "tool_calls"
    depends_on: ClassVar[Scope] = "session"

    ok: float = 1.0
    failed: float = 0.0

    def derive(self, table: TurnTable) -> Rewards:
        """Return the sum of the rewards of each scored turn's calls."""
        parts = self.terms(table)
        return Rewards(table, parts["ok"] + parts["failed"], self.stamp)

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return the terms ``ok`` and ``failed``."""
        return {
            "ok": np.where(table.scored, self.ok * table.calls_ok, 0.0),
            "failed": np.where(table.scored, self.failed * table.calls_failed, 0.0),
        }
