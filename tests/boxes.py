"""An environment whose every session holds a real sandbox; importable from other processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tests.worlds import call
from trajgym.envs import Budgets, Env, register, tool
from trajgym.envs.sandbox import (
    Sandbox,
    SandboxSpec,
    close_shared_providers,
    shared_provider,
)
from trajgym.rollout import Policy, PolicyRequest, ScriptedPolicy
from trajgym.trajectory import Message, Task

MARK = "trajgym-test"


@register("test/box")
class Box(Env):
    """A shell in a sandbox; solved when the agent has written three lines."""

    budgets: ClassVar[Budgets] = Budgets(turns=8, seconds=600)

    def __init__(self, sandbox: str) -> None:
        self.kind = sandbox
        self.box: Sandbox | None = None

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        line = {"command": f"echo {task.id} {sample} >> lines; wc -l < lines"}
        return [call(("bash", json.dumps(line)))] * 3 + [{"role": "assistant", "content": "done"}]

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        provider = await shared_provider(str(config["sandbox"]))
        await provider.reap()

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        await close_shared_providers()

    async def reset(self, task: Task, seed: int | None) -> str:
        provider = await shared_provider(self.kind)
        labels = {**self.labels, MARK: os.environ.get("TRAJGYM_TEST_MARK", "none")}
        spec = SandboxSpec(image="trajgym/base:bookworm", labels=labels)
        self.box = await provider.start(spec)
        return "Write three lines."

    @tool
    async def bash(self, command: str) -> str:
        """Run a command.

        Args:
            command: a shell line.
        """
        assert self.box is not None
        done = await self.box.run(command)
        return done.stdout.decode(errors="replace")

    async def verify(self) -> bool:
        assert self.box is not None
        return (await self.box.read_file("/work/lines")).count(b"\n") == 3

    async def close(self) -> None:
        if self.box is not None:
            await self.box.close()


class SlowBox(Box):
    """A shell in a sandbox whose agent runs one long command."""

    budgets: ClassVar[Budgets] = Budgets(turns=8, seconds=3600, seconds_per_turn=3600)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        del task, sample
        return [call(("bash", json.dumps({"command": "sleep 3600"})))]


def _answer(request: PolicyRequest) -> Message:
    said = sum(message["role"] == "assistant" for message in request.messages)
    return Box.script(request.task, request.sample)[said]


def policy() -> Policy:
    """Make a policy that does what the box asks."""
    return ScriptedPolicy(_answer)
