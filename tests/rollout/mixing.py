"""Two environments and a policy for mixtures: importable by name from other processes."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, tool
from trajgym.rollout import Policy, ScriptedPolicy, call
from trajgym.rollout.mixture import Mixture, Part
from trajgym.trajectory import Message, Task

__all__ = ["EASY", "HARD", "mixed", "parts", "policy"]


class Easy(Env):
    """Every session is solved."""

    budgets: ClassVar[Budgets] = Budgets(turns=3, seconds=600)
    gate: ClassVar[asyncio.Event | None] = None
    """Sessions of this process go on once it is set."""
    score = 1.0

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def reset(self, task: Task, seed: int | None) -> str:
        return f"Go, {task.id}."

    @tool
    async def go(self) -> ToolResult:
        """Go."""
        await asyncio.sleep(self.seconds)
        if self.gate is not None:
            async with asyncio.timeout(60):
                await self.gate.wait()
        return ToolResult(content="gone", done=True)

    def verify(self) -> float:
        return self.score


class Hard(Easy):
    """No session is solved."""

    score = 0.0


class Scripted(Easy):
    """Has a script, as commands need."""

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        return [call("go")]


EASY = EnvSpec(id="tests.rollout.mixing:Easy")
HARD = EnvSpec(id="tests.rollout.mixing:Hard")


def policy() -> Policy:
    """Make a policy that goes."""
    return ScriptedPolicy(lambda _: call("go"))


def parts(limit: int | None = None, seconds: float = 0.0) -> list[Part]:
    """Return an easy part with six tasks, and a hard one with three."""
    config = {"seconds": seconds}
    return [
        Part(
            name="easy",
            spec=EnvSpec(id=EASY.id, config=config),
            tasks=[Task(id=f"easy{i}") for i in range(6)],
            limit=limit,
        ),
        Part(
            name="hard",
            spec=EnvSpec(id=HARD.id, config=config),
            tasks=[Task(id=f"hard{i}") for i in range(3)],
        ),
    ]


def mixed() -> Mixture:
    """Return both, with two samples of each hard task."""
    easy, hard = parts()
    return Mixture([easy, Part(name="hard", spec=hard.spec, tasks=hard.tasks, samples=2)])
