"""Real torch tensors as rewards, verdicts, flags and signals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worlds import call
from trajgym.envs import Env, EnvSpec, ToolResult, tool
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.trajectory import Outcome, Run, Task

ONES: dict[str, Any] = {
    "float32": torch.tensor(1.0),
    "float64": torch.tensor(1.0, dtype=torch.float64),
    "float16": torch.tensor(1.0, dtype=torch.float16),
    "bfloat16": torch.tensor(1.0, dtype=torch.bfloat16),
    "int64": torch.tensor(1),
    "uint8": torch.tensor(1, dtype=torch.uint8),
    "bool": torch.tensor(True),
    "with a gradient": torch.tensor(1.0, requires_grad=True),
    "one of a vector": torch.ones(3)[1],
    "parameter": torch.nn.Parameter(torch.tensor(1.0)),
}
REFUSED: dict[str, Any] = {
    "nan": torch.tensor(float("nan")),
    "inf": torch.tensor(float("inf")),
    "vector": torch.ones(2),
    "one-element vector": torch.ones(1),
    "complex": torch.tensor(1 + 0j),
}


class Tensors(Env):
    """Returns the tensor that its task names, where its configuration says."""

    def __init__(self, where: str) -> None:
        self.where = where

    def reset(self, task: Task, seed: int | None) -> str:
        self.value = (ONES | REFUSED)[task.id]
        return "go"

    @tool
    def go(self) -> ToolResult:
        """Go on."""
        if self.where == "reward":
            return ToolResult(content="ok", reward=self.value, done=True)
        if self.where == "done":
            return ToolResult(content="ok", done=self.value)
        if self.where == "signals":
            return ToolResult(content="ok", done=True, signals={"a": [self.value]})
        return ToolResult(content="ok", done=True)

    def verify(self) -> Any:
        if self.where == "verdict":
            return self.value
        if self.where == "score":
            return Outcome(score=self.value, passed=self.value, details={"x": self.value})
        return 1.0


@pytest.mark.parametrize("where", ["reward", "done", "signals", "verdict", "score"])
async def test_tensors_are_numbers(tmp_path: Path, where: str) -> None:
    """Tensors without dimensions count as their number; others are the environment's failure."""
    spec = EnvSpec(id="tests.trl.test_numbers:Tensors", config={"where": where})
    tasks = [Task(id=kind) for kind in (*ONES, *REFUSED)]
    await collect(spec, tasks, ScriptedPolicy.always(call(("go", "{}"))), tmp_path)
    part = "verify" if where in {"verdict", "score"} else "env"
    with Run(tmp_path) as run:
        for tree in run.sessions():
            kind, (attempt,) = tree.record.task, tree.attempts
            if kind in ONES:
                assert str(attempt.status) == "completed", (kind, attempt.cause)
                assert attempt.outcome is not None
                assert (attempt.outcome.score, attempt.outcome.passed) == (1.0, True)
                assert tree.turns[0].reward == (1.0 if where == "reward" else None)
                assert tree.turns[0].signals == ({"a": [1]} if where == "signals" else {})
            elif where == "signals" and "vector" in kind:
                assert str(attempt.status) == "completed"  # arrays are lists
            else:
                assert str(attempt.status) == f"failed:{part}", kind
                assert attempt.cause
