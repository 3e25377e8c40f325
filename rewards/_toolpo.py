"""ToolPO: outcome advantage on all tokens, action advantage on tool calls and memory folds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._spans import outermost
from trajgym.rewards._stats import Convention, group_relative, grouped_attempts
from trajgym.rewards._table import SPAN_KINDS
from trajgym.rewards._values import Advantages
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Flags, Scope, TurnTable

__all__ = ["ToolPO"]

_MEAN_ONLY = Convention(divide=False)
_CALL, _FOLD = SPAN_KINDS.index("tool_call"), SPAN_KINDS.index("fold")


class ToolPO(Deriver):
    """ToolPO (DeepAgent, arXiv 2510.21618v3, Eq. 5-8): ``A(y) = A_succ + M(y) * A_action``.

    ``A_succ`` is the outcome minus the group's mean, on all of an attempt's tokens. ``A_action`` is
    ``R_action`` minus the group's mean, on tool-call and memory-fold tokens (M) only;
    ``R_action = lambda1 * successful calls + lambda2 * S_pref``, and ``S_pref = (direct - folded)
    / (direct + folded)`` in tokens, from the outcome details ``len_direct`` and ``len_fold``.
    Nothing is divided by a std. Both are one scalar per attempt, so a failed call of a good attempt
    is reinforced too. Turns shared by several attempts get the mean of their advantages.

    The paper does not define S_pref without such a pair; it is 0 here. There is no public trainer,
    hence one variant. A turn with successful tool calls but no recorded tool-call span has no
    tokens to apply ``A_action`` to.

    Attributes:
        lambda1: weight of the calls.
        lambda2: weight of the preference for folding.
        missing_spans: what to do about exact turns with successful calls and no tool-call span:
            raise (``error``), apply the action advantage to the whole ``turn``, or ``ignore`` them.
            Text turns have no spans and no training rows, and are always ignored.
    """

    name = "toolpo"
    depends_on: ClassVar[Scope] = "group"
    group_relative = True

    lambda1: float = 1.0
    lambda2: float = 1.0
    missing_spans: Literal["error", "turn", "ignore"] = "error"

    def derive(self, table: TurnTable) -> Advantages:
        """Return ``A_succ`` over turns and ``A_action`` over spans.

        Raises:
            InvalidInput: a turn's tool calls have no spans (see ``missing_spans``), or a scored
                attempt has no group.
        """
        turns = self.terms(table)
        action = self.action_advantage(table)
        spans = np.where(_selected(table), action[table.span_turn], 0.0)
        values = turns["success"] + turns.get("action", 0.0)
        return Advantages(table, values, self.stamp, spans=spans)

    def terms(self, table: TurnTable) -> dict[str, Doubles]:
        """Return ``success``, and ``action`` where whole turns get it (``missing_spans``)."""
        found = {"success": self._relative(table, table.attempt_score)}
        bare = self._bare_turns(table)
        if bare.any() and self.missing_spans == "turn":
            found["action"] = np.where(bare, self.action_advantage(table), 0.0)
        return found

    def action_reward(self, table: TurnTable) -> Doubles:
        """Return float64 ``[A]``: ``R_action``, 0 on attempts that are not scored."""
        calls = table.total(table.calls_ok[table.member_turn].astype(np.float64))
        direct, folded = table.attempt_direct, table.attempt_folded
        pair = (direct > 0) & (folded > 0)
        preferred = np.where(pair, (direct - folded) / np.where(pair, direct + folded, 1.0), 0.0)
        earned = self.lambda1 * calls + self.lambda2 * preferred
        return np.where(table.attempt_scored, earned, 0.0)

    def action_advantage(self, table: TurnTable) -> Doubles:
        """Return float64 ``[N]``: ``A_action`` of each turn, even if it has no such spans."""
        return self._relative(table, self.action_reward(table))

    def _relative(self, table: TurnTable, rewards: Doubles) -> Doubles:
        counted, groups = grouped_attempts(table)
        values = np.zeros(rewards.size)
        values[counted] = group_relative(rewards[counted], groups, _MEAN_ONLY)
        return table.spread(values, self.prefix_rule)

    def _bare_turns(self, table: TurnTable) -> Flags:
        marked = np.bincount(table.span_turn[table.span_kind == _CALL], minlength=len(table)) > 0
        bare: Flags = table.exact & table.scored & (table.calls_ok > 0) & ~marked
        if self.missing_spans == "error" and bare.any():
            first = int(np.argmax(bare))
            raise InvalidInput(
                f"toolpo: turn {table.turn[first]} of session "
                f"{table.sessions[table.session[first]]} has successful tool calls but no "
                "tool-call span: use a renderer that parses tool calls, or set missing_spans",
            )
        return bare


def _selected(table: TurnTable) -> Flags:
    """Return bool ``[K]``: tool calls and folds that are not inside another one.

    M is 0 or 1, so a call written inside a fold must not count twice.
    """
    return outermost(table, (table.span_kind == _CALL) | (table.span_kind == _FOLD))
