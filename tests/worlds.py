"""Small environments that the tests share; importable by name from other processes."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trajgym.envs import Budgets, Env, Image, ToolError, ToolResult, Truncate, register, tool
from trajgym.envs.sandbox import SandboxDied
from trajgym.trajectory import Message, Outcome, Task

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082",
)


@register("test/counter")
class Counter(Env):
    """Counts; every way in which a tool can behave has a tool here."""

    budgets: ClassVar[Budgets] = Budgets(turns=20, seconds=600, seconds_per_turn=300)
    verify_seconds: ClassVar[float] = 300
    closed: ClassVar[list[str]] = []
    gate: ClassVar[threading.Event] = threading.Event()
    waiting: ClassVar[threading.Semaphore] = threading.Semaphore(0)

    def __init__(self, target: int = 3, break_at: str = "") -> None:
        self.target, self.break_at = target, break_at
        self.n = 0
        self.barrier = asyncio.Barrier(2)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        if task.id == "stuck":
            return [call(("bug", "{}"))]
        return [call(("add", json.dumps({"n": sample + 1}))), call(("finish", "{}"))]

    def reset(self, task: Task, seed: int | None) -> str:
        if self.break_at == "reset":
            raise RuntimeError("no power")
        if self.break_at == "slow reset":
            time.sleep(60)
        self.random = random.Random(seed)
        return f"Count to {self.target}."

    @tool
    def add(self, n: int = 1) -> ToolResult:
        """Add to the counter.

        Args:
            n: how much.
        """
        self.n += n
        return ToolResult(content=f"now {self.n}", reward=0.1, signals={"n": self.n})

    @tool
    async def dice(self) -> str:
        """Roll a die that the seed decides."""
        return str(self.random.randint(1, 6))

    @tool
    def clock(self) -> str:
        """Tell a time that never comes back."""
        return str(time.perf_counter_ns())

    @tool
    def finish(self) -> ToolResult:
        """End the episode."""
        return ToolResult(content="bye", reward=1.0, done=True)

    @tool
    def refuse(self) -> str:
        """Say no."""
        raise ToolError("I will not")

    @tool
    def parse(self, text: str) -> str:
        """Read a number.

        Args:
            text: digits.
        """
        return str(int(text))

    @tool
    def bug(self) -> str:
        """Fail as broken code does."""
        raise AttributeError("typo in the environment")

    @tool
    def lose_sandbox(self) -> str:
        """Fail as a dead container does."""
        raise SandboxDied("the container is gone")

    @tool
    def use_up(self) -> str:
        """Fail as a command that ran out of memory does."""
        raise Truncate("memory", "512 MB used up")

    @tool
    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: how long.
        """
        await asyncio.sleep(seconds)
        return "waited"

    @tool
    def block(self, seconds: float) -> str:
        """Wait without giving way.

        Args:
            seconds: how long.
        """
        time.sleep(seconds)
        return "blocked"

    @tool
    def pass_gate(self) -> str:
        """Wait without giving way until the test opens the gate."""
        self.waiting.release()
        if not self.gate.wait(60):
            raise TimeoutError("the gate was not opened")
        return "passed"

    @tool(concurrent=True)
    async def meet(self) -> str:
        """Return when two calls of this tool run at once."""
        await self.barrier.wait()
        return "met"

    @tool
    def flood(self, size: int) -> str:
        """Return much text.

        Args:
            size: characters.
        """
        return "A" + "x" * (size - 2) + "Z"

    @tool
    def odd_text(self) -> str:
        """Return text that is not valid Unicode."""
        return "bad \ud800 end\x00"

    @tool
    def look(self) -> ToolResult:
        """Return a screenshot."""
        return ToolResult(content=["you see", Image(PNG)])

    async def verify(self) -> Outcome:
        if self.break_at == "verify":
            raise RuntimeError("no ruler")
        if self.break_at == "slow verify":
            await asyncio.sleep(60)
        return Outcome(score=float(self.n == self.target), passed=self.n == self.target)

    def close(self) -> None:
        Counter.closed.append(str(self.labels.get("session")))
        if self.break_at == "close":
            raise RuntimeError("stuck door")


@register("test/held")
class Held(Counter):
    """A counter of which no session begins, after some in a process, until there is a file."""

    begun: ClassVar[int] = 0

    def __init__(self, file: str, free: int = 40) -> None:
        super().__init__()
        self.file, self.free = Path(file), free

    async def reset(self, task: Task, seed: int | None) -> str:  # type: ignore[override]
        Held.begun += 1
        while Held.begun > self.free and not self.file.exists():
            await asyncio.sleep(0.01)
        return super().reset(task, seed)


@register("test/echo")
class Echo(Env):
    """Takes free text and repeats it, until it hears 'stop'."""

    async def reset(self, task: Task, seed: int | None) -> list[Message]:
        self.heard: list[str] = []
        return [{"role": "system", "content": "Say things."}, {"role": "user", "content": "Go."}]

    async def respond(self, message: Message) -> ToolResult:
        text = message["content"] or ""
        self.heard.append(text)
        return ToolResult(content=f"you said {text}", done=text == "stop")

    async def verify(self) -> bool:
        return len(self.heard) >= 2


@register("test/snapshots")
class Snapshots(Counter):
    """A counter whose clock can't be replayed, but which takes snapshots."""

    kept: ClassVar[dict[str, int]] = {}
    taken: ClassVar[int] = 0
    resets: ClassVar[list[str]] = []

    def reset(self, task: Task, seed: int | None) -> str:
        Snapshots.resets.append(str(self.labels.get("session")))
        return super().reset(task, seed)

    def snapshot(self) -> str:
        name = f"snap{Snapshots.taken}"
        Snapshots.taken += 1
        Snapshots.kept[name] = self.n
        return name

    def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        super().reset(task, seed)
        self.n = Snapshots.kept[snapshot]

    @classmethod
    async def discard_snapshots(cls, config: Mapping[str, Any], snapshots: Sequence[str]) -> None:
        for snapshot in snapshots:
            del Snapshots.kept[snapshot]


@register("test/unforkable")
class Unforkable(Counter):
    """Declares that it can't be forked."""

    forkable: ClassVar[bool] = False


def call(*calls: tuple[str, str], text: str | None = None) -> dict[str, Any]:
    """Return an assistant message that calls tools, arguments as JSON text."""
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(calls)
        ],
    }
