"""The load: sessions of ten turns, and the engine that counts their responses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, Env, ToolResult, register
from trajgym.rollout.engines import TokenEngine

if TYPE_CHECKING:
    from trajgym.rollout.engines import Generation
    from trajgym.trajectory import Message, Task

__all__ = ["ASKED", "MOST_SECONDS", "SEEN", "TURNS", "Counted"]

TURNS = 10
MOST_SECONDS = 20.0
"""Of one measurement; then it is cut, and its rate is that of the turns so far."""
ASKED = "Find the door. Say up, down, left or right.\nDoor: {} down, {} left. Open: up, down, left."
SEEN = "Door: {} down, 2 left. Open: up, down, right."


@register("bench/turns")
class Turns(Env):
    """Answers each of ten turns with a short observation."""

    budgets: ClassVar[Budgets] = Budgets(turns=TURNS, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        self.n = 0
        number = int(task.data["n"])
        return ASKED.format(number // 100, number % 100)

    async def respond(self, message: Message) -> ToolResult:  # noqa: ARG002
        self.n += 1
        return ToolResult(content=SEEN.format(self.n), done=self.n == TURNS)

    async def verify(self) -> float:
        return 1.0


class Counted(TokenEngine):
    """Counts the responses of an engine, and their tokens.

    Args:
        inner: the engine.
        stop: ends a response that is full, so that its session goes on.
    """

    def __init__(self, inner: TokenEngine, stop: int | None = None) -> None:
        self.inner, self.stop = inner, stop
        self.name = inner.name
        self.logprob_mode = inner.logprob_mode
        self.turns = self.tokens = 0
        self.begun = self.ended = 0.0
        """Times of the first request and of the last response."""

    async def generate(self, prompt_ids: Any, *, max_tokens: int, **options: Any) -> Generation:
        self.begun = self.begun or time.time()
        most = max_tokens - (self.stop is not None)
        got = await self.inner.generate(prompt_ids, max_tokens=most, **options)
        self.answered(len(got.ids))
        if self.stop is None or got.finish != "length":
            return got
        last = got.segments[-1]
        return got._replace(
            ids=[*got.ids, self.stop],
            logprobs=[*got.logprobs, 0.0],
            segments=(*got.segments[:-1], last._replace(length=last.length + 1)),
            finish="stop",
        )

    def answered(self, tokens: int) -> None:
        self.turns += 1
        self.tokens += tokens
        self.ended = time.time()
