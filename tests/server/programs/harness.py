"""Agent programs against the fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.server.fake import RENDERER, Engine, Trouble, serving
from trajgym.envs import EnvSpec
from trajgym.rollout import CollectReport, collect
from trajgym.server import AgentProgram, Upstream
from trajgym.trajectory import Run, SessionTree, Task

LOOP = str(Path(__file__).with_name("loop_agent.py"))
Script = Callable[[int, dict[str, Any]], dict[str, Any]]


@dataclass
class Case:
    """A fake engine, and runs of agent programs with it."""

    engine: Engine
    out: Path

    async def collect(
        self, spec: EnvSpec, tasks: list[Task], agent: dict[str, Any], **settings: Any
    ) -> CollectReport:
        async with self.policy(**agent) as policy:
            return await collect(spec, tasks, policy, self.out, **settings)

    def policy(self, **agent: Any) -> AgentProgram:
        upstream = Upstream(
            base_url=self.engine.url,
            renderer=RENDERER,
            logprob_mode="processed",
        )
        return AgentProgram(upstream, model="fake", **agent)

    def trees(self) -> list[SessionTree]:
        with Run(self.out) as run:
            return list(run.sessions())

    def tree(self) -> SessionTree:
        (tree,) = self.trees()
        return tree


@asynccontextmanager
async def case(path: Path, script: Script, *troubles: Trouble) -> AsyncIterator[Case]:
    async with serving(Engine(script, list(troubles))) as engine:
        yield Case(engine, path / "run")


def solving(patch: str) -> Script:
    """Return the answers that solve a task whose solution is known."""

    def script(n: int, body: dict[str, Any]) -> dict[str, Any]:
        done = sum(message["role"] == "assistant" for message in body["messages"])
        if done == 0:
            return {"text": "Look.", "calls": [("bash", {"command": "pwd; ls"})]}
        if done == 1:
            line = f"git apply - <<'END'\n{patch}END"
            return {"text": "Repair.", "calls": [("bash", {"command": line})]}
        return {"text": "Done."}

    return script
