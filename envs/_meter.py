"""Counting what an attempt has used of its budgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trajgym.envs._clock import AgentClock
from trajgym.envs._errors import Truncate
from trajgym.envs._reply import TurnLimits

if TYPE_CHECKING:
    from trajgym.envs._budgets import Budgets
    from trajgym.trajectory import Turn, Usage

__all__ = ["Meter", "Remaining"]

_Number = TypeVar("_Number", int, float)
_TICK = 1e-3
"""Number of seconds by which timers may fire early."""


class Remaining(NamedTuple):
    """What is left of the budgets after the turn in progress; None for no limit.

    ``str()`` describes it for the agent. Seconds are not included, because a fork that replays a
    turn must give the recorded observation.

    Args:
        turns: policy calls.
        completion_tokens: response tokens, if the policy reports its usage.
        reasoning_tokens: reasoning tokens, if the policy reports its usage.
    """

    turns: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __str__(self) -> str:
        kinds = zip(self, ("turn", "token", "reasoning token"), strict=True)
        return ", ".join(
            f"{left} {kind}{'' if left == 1 else 's'} left"
            for left, kind in kinds
            if left is not None
        )


@dataclass(slots=True)
class Meter:
    """Counts turns, tokens and seconds of one attempt against its budgets."""

    budgets: Budgets
    clock: AgentClock = field(default_factory=AgentClock)
    turns: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    turn_seconds: float = 0.0
    """Agent seconds of the turn in progress."""

    def count(self, turn: Turn) -> None:
        """Add a recorded turn, and reset the per-turn budgets."""
        self.turns += 1
        self.turn_seconds = 0.0
        if turn.usage is not None:
            self.completion_tokens += turn.usage.completion_tokens
            self.reasoning_tokens += turn.usage.reasoning_tokens

    @property
    def limits(self) -> TurnLimits:
        """What is left for the next policy call."""
        budgets = self.budgets
        return TurnLimits(
            completion_tokens=_least(
                budgets.completion_tokens_per_turn,
                _minus(budgets.completion_tokens, self.completion_tokens),
            ),
            reasoning_tokens=_least(
                budgets.reasoning_tokens_per_turn,
                _minus(budgets.reasoning_tokens, self.reasoning_tokens),
            ),
            seconds=self.seconds_left,
        )

    def remaining(self, turns: int = 0, usage: Usage | None = None) -> Remaining:
        """Return what is left once ``turns`` more turns with this usage are counted."""
        budgets = self.budgets
        completion, reasoning = self.completion_tokens, self.reasoning_tokens
        if usage is not None:
            completion += usage.completion_tokens
            reasoning += usage.reasoning_tokens
        return Remaining(
            _minus(budgets.turns, self.turns + turns),
            _minus(budgets.completion_tokens, completion),
            _minus(budgets.reasoning_tokens, reasoning),
        )

    @property
    def seconds_left(self) -> float | None:
        """Agent seconds left for the turn in progress."""
        return _least(
            _minus(self.budgets.seconds_per_turn, self.turn_seconds),
            _minus(self.budgets.seconds, self.clock.used),
        )

    def used_up(self) -> Truncate | None:
        """Return the budget that is exhausted between turns, if any."""
        budgets = self.budgets
        if budgets.turns is not None and self.turns >= budgets.turns:
            return Truncate("turns", f"{self.turns} of {budgets.turns} turns used")
        limit = budgets.completion_tokens
        if limit is not None and self.completion_tokens >= limit:
            cause = f"{self.completion_tokens} of {limit} completion tokens used"
            return Truncate("completion_tokens", cause)
        if budgets.seconds is not None and self.clock.used >= budgets.seconds:
            return self.out_of_time()
        return None

    def out_of_time(self) -> Truncate:
        """Return which of the two time budgets has expired."""
        budgets = self.budgets
        if budgets.seconds is not None and self.clock.used >= budgets.seconds - _TICK:
            return Truncate("seconds", f"{budgets.seconds:g} s of the agent's time used")
        return Truncate("seconds_per_turn", f"{budgets.seconds_per_turn:g} s used in one turn")

    def out_of_tokens(self) -> Truncate:
        """Return which token budget a truncated response has reached."""
        per_turn = self.budgets.completion_tokens_per_turn
        left = _minus(self.budgets.completion_tokens, self.completion_tokens)
        if per_turn is not None and (left is None or per_turn <= left):
            return Truncate("completion_tokens_per_turn", f"{per_turn} tokens used in one turn")
        return Truncate("completion_tokens", "the response was cut off at its length limit")


def _minus(limit: _Number | None, used: _Number) -> _Number | None:
    return None if limit is None else max(type(limit)(0), limit - used)


def _least(first: _Number | None, second: _Number | None) -> _Number | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
