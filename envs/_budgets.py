"""Budgets: the limits of an attempt, at which it is truncated, verified and scored."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from trajgym.trajectory import InvalidInput

__all__ = ["Budgets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits of one attempt, declared by the environment; a session may override them.

    None means no limit. Reaching a limit ends the attempt as ``truncated:<name>``, which is scored;
    ``reasoning_tokens*`` and ``observation_bytes`` shorten reasoning or observations instead.
    Seconds are the agent's time: sampling and tool execution count; queueing, engine pauses,
    sandbox starts and verification don't.

    Args:
        turns: policy calls.
        completion_tokens: response tokens of the whole attempt.
        completion_tokens_per_turn: response tokens of one turn.
        reasoning_tokens: reasoning tokens of the whole attempt; when they are used up, token-exact
            policies close the reasoning with inserted ids, and the turn continues.
        reasoning_tokens_per_turn: the same for one turn.
        observation_bytes: UTF-8 bytes of one tool result or observation; its head and tail are
            kept around a note of how much was omitted.
        seconds: the agent's time for the whole attempt.
        seconds_per_turn: the agent's time for one turn.
    """

    turns: int | None = 100
    completion_tokens: int | None = None
    completion_tokens_per_turn: int | None = None
    reasoning_tokens: int | None = None
    reasoning_tokens_per_turn: int | None = None
    observation_bytes: int | None = 100_000
    seconds: float | None = 3600.0
    seconds_per_turn: float | None = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidInput(f"budget {field.name} is {value!r}; it must be positive or None")

    def to_json(self) -> dict[str, Any]:
        """Return the limits by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read the form that :meth:`to_json` returns; unknown names are an error."""
        if unknown := sorted(set(data) - {field.name for field in fields(cls)}):
            raise InvalidInput(f"unknown budgets {unknown}")
        return cls(**data)
