"""Length penalties, in tokens (DAPO) and in turns (Nebius)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from trajgym.rewards._deriver import Deriver
from trajgym.rewards._values import Rewards

if TYPE_CHECKING:
    from trajgym.rewards._table import Doubles, Scope, TurnTable

__all__ = ["SoftOverlong", "StepPenalty"]


class SoftOverlong(Deriver):
    """DAPO's soft overlong penalty (arXiv 2503.14476, Eq. 13) on an attempt's last turn.

    With ``y`` the attempt's response tokens (prompts and observations do not count):
    0 up to ``max_tokens - cache``, then falling to -1 at ``max_tokens``, and -1 beyond.

    Attributes:
        max_tokens: L_max.
        cache: L_cache, the number of tokens over which the penalty grows.
        factor: factor of the penalty.
        variant: ``official`` (verl) has no lower bound: beyond ``max_tokens`` it keeps falling.
    """

    name = "soft_overlong"
    depends_on: ClassVar[Scope] = "session"

    max_tokens: Annotated[int, Field(gt=0)] = 20480
    cache: Annotated[int, Field(gt=0)] = 4096
    factor: float = 1.0
    variant: Literal["paper", "official"] = "paper"

    def derive(self, table: TurnTable) -> Rewards:
        """Return the penalty of each scored attempt on its last turn."""
        tokens = table.total(table.response_tokens[table.member_turn].astype(np.float64))
        return Rewards(table, table.at_leaves(self.penalty(tokens)), self.stamp)

    def penalty(self, tokens: Doubles) -> Doubles:
        """Return the penalty for each number of tokens."""
        over = np.maximum(tokens - (self.max_tokens - self.cache), 0.0) / self.cache
        if self.variant == "paper":
            over = np.minimum(over, 1.0)
        return 0.0 - self.factor * over


class StepPenalty(Deriver):
    """Nebius' length penalty (arXiv 2508.03501v2) on an attempt's last turn.

    With n the attempt's turns: 0 below ``threshold``, else ``(threshold - n) / (max_turns -
    threshold)``: solving the task in ``max_turns`` turns is worth as little as failing quickly.
    There is no public trainer, hence one variant.

    Attributes:
        threshold: L_thr.
        max_turns: T_max; 40 in the paper's first stage, 80 in its second.
    """

    name = "step_penalty"
    depends_on: ClassVar[Scope] = "session"

    threshold: Annotated[int, Field(ge=0)] = 10
    max_turns: Annotated[int, Field(gt=0)] = 40

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.threshold >= self.max_turns:
            raise ValueError(f"threshold {self.threshold} is not below max_turns {self.max_turns}")
        return self

    def derive(self, table: TurnTable) -> Rewards:
        """Return the penalty of each scored attempt on its last turn."""
        turns = np.diff(table.member_starts).astype(np.float64)
        return Rewards(table, table.at_leaves(self.penalty(turns)), self.stamp)

    def penalty(self, turns: Doubles) -> Doubles:
        """Return the penalty for each number of turns."""
        return 0.0 - np.maximum(turns - self.threshold, 0.0) / (self.max_turns - self.threshold)
