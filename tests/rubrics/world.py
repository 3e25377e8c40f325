"""Environments with rubrics, importable by name."""

from __future__ import annotations

from typing import Any

from trajgym.envs import ChatModel, Env, ToolResult, register, tool
from trajgym.envs.rubrics import Case, Rubric, last_number, tagged
from trajgym.trajectory import Message, Task

sums = Rubric("sums", passing=1.0)


@sums.reward(weight=0.75)
def right(case: Case) -> bool:
    return last_number(case.answer) == case.task.data["answer"]


@sums.reward(weight=0.25)
def thrifty(case: Case) -> float:
    return 1.0 / max(1, len(case.calls))


@sums.check(gate=True)
def honest(case: Case) -> bool:
    return not case.facts["peeked"]


@sums.check
def finished(case: Case) -> bool:
    return str(case.attempt.status) == "completed"


strict = Rubric("strict")


@strict.reward
def tagged_right(case: Case) -> bool:
    """The form of the answer counts, too."""
    return tagged(case.answer) == str(case.task.data["answer"])


polite = Rubric("polite")


@polite.judge(scale=10)
def tone(case: Case) -> str:
    return f"How polite is this, from 0 to 10?\n{case.answer}"


class Summing(Env):
    """Asks for a sum; a tool adds, another one looks the answer up."""

    rubric = sums

    def __init__(self) -> None:
        self.peeked = False

    def reset(self, task: Task, seed: int | None) -> str:
        self.answer = task.data["answer"]
        return task.prompt or "Add."

    @tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: one.
            b: the other.
        """
        return str(a + b)

    @tool
    def peek(self) -> ToolResult:
        """Look the answer up."""
        self.peeked = True
        return ToolResult(content=str(self.answer))

    def facts(self) -> dict[str, Any]:
        return {"peeked": self.peeked}

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        said = f"<answer>{task.data['answer']}</answer>" if sample == 0 else "It is 7"
        return [{"role": "assistant", "content": said}]


register("test/summing")(Summing)


@register("test/judged")
class Judged(Summing):
    """The same, and a model judges the tone."""

    rubric = sums + polite

    def __init__(self, judge: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.judge = None if judge is None else ChatModel.model_validate(judge)
