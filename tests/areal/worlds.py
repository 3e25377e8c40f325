"""Environments for AReaL's executor: ones that hang, break or block on demand."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from tests.trl.tiny import Words
from trajgym.envs import Budgets, ToolResult, register
from trajgym.trajectory import Message, Task


@register("test/areal")
class Moody(Words):
    """Words, but a task's data can make it hang, or break one sample of a group."""

    budgets: ClassVar[Budgets] = Budgets(turns=3, seconds=3600, seconds_per_turn=3600)

    async def reset(self, task: Task, seed: int | None) -> list[Message]:
        self.hang = bool(task.data.get("hang"))
        sample = self.labels["session"].rpartition("-")[2]
        self.answer = task.data.get("answer")
        self.broken = task.data.get("break") in {int(sample), "all"}
        return await super().reset(task, seed)

    async def respond(self, message: Message) -> ToolResult:
        if self.broken:
            raise RuntimeError("the sandbox is gone")
        answer = await super().respond(message)
        return answer if self.answer is None else ToolResult(content=self.answer)


@register("test/together")
class Together(Words):
    """Blocks its thread until three sessions are there at once."""

    barrier: ClassVar[threading.Barrier] = threading.Barrier(3)

    def reset(self, task: Task, seed: int | None) -> list[Message]:  # type: ignore[override]
        Together.barrier.wait(120)
        return asyncio.run(super().reset(task, seed))
