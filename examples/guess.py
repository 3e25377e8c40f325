"""A game for small models: guess a number, in plain messages without tools."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, register
from trajgym.trajectory import Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from trajgym.rollout import PolicyRequest
    from trajgym.trajectory import Message

SPEC = EnvSpec(id="example/guess")
_NUMBER = re.compile(r"\d+")


@register("example/guess")
class Guess(Env):
    """The agent guesses a number and is told "higher" or "lower", at most six times."""

    budgets: ClassVar[Budgets] = Budgets(turns=6, seconds_per_turn=120)

    def __init__(self, most: int = 20) -> None:
        self.most = most

    async def reset(self, task: Task, seed: int | None) -> str:
        del seed  # the task has the number, so all sessions of a group guess the same one
        self.number = int(task.data["number"])
        self.guesses = 0
        self.nearest = self.most
        return f"Guess my number, from 1 to {self.most}. Answer with a number only."

    async def respond(self, message: Message) -> ToolResult:
        self.guesses += 1
        found = _NUMBER.search(str(message.get("content") or ""))
        if found is None or len(found[0]) > 4:
            return ToolResult(content="That is no number. Answer with a number only.")
        guess = int(found[0])
        self.nearest = min(self.nearest, abs(guess - self.number))
        if guess == self.number:
            return ToolResult(content="Right!", done=True, reward=1.0)
        return ToolResult(content="Higher." if guess < self.number else "Lower.")

    async def verify(self) -> Outcome:
        solved = self.nearest == 0
        score = 1.0 if solved else 0.5 * (1 - min(self.nearest, self.most) / self.most)
        return Outcome(score=score, passed=solved, details={"guesses": self.guesses})


def tasks(n: int, most: int = 20, seed: int = 0) -> list[Task]:
    """Return n games."""
    chance = random.Random(seed)
    return [Task(id=f"guess-{i}", data={"number": chance.randint(1, most)}) for i in range(n)]


def halving(request: PolicyRequest) -> Generator[str, Sequence[Message], None]:
    """Guess as an expert does: the middle of the remaining range."""
    del request
    low, high = 1, 20
    while True:
        guess = (low + high) // 2
        messages = yield str(guess)
        answer = str(messages[-1]["content"])
        if answer.startswith("Higher"):
            low = guess + 1
        else:
            high = guess - 1
