"""Small environments in the classes of `verifiers`, loaded by name as a package of the hub is."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset

SUMS = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(3)]


def right(completion: Any, answer: str) -> float:
    """Whether the last message has the answer."""
    return float(answer in str(completion[-1].content))


def brief(completion: Any) -> float:
    """Whether the last message is short."""
    return float(len(str(completion[-1].content)) < 5)


def rubric() -> vf.Rubric:
    return vf.Rubric(funcs=[right, brief], weights=[1.0, 0.5])


class Guessing(vf.MultiTurnEnv):
    """Guess the answer; the environment says whether it is higher or lower."""

    async def setup_state(self, state: Any) -> Any:
        state["guesses"] = 0
        return state

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        state["guesses"] += 1
        guess, answer = str(messages[-1].content), int(state["answer"])
        if guess == "crash":
            raise RuntimeError("the table broke")
        if guess == "infra":
            raise vf.InfraError("the sandbox is gone")
        if not guess.isdigit():
            return [vf.UserMessage(content="a number"), vf.UserMessage(content="please")]
        if int(guess) == answer:
            state["final_env_response"] = [vf.UserMessage(content="found")]
            return state["final_env_response"]
        return [vf.UserMessage(content="higher" if int(guess) < answer else "lower")]


def guesses(state: Any) -> float:
    """How often the environment answered."""
    return float(state["guesses"])


def found(state: Any) -> float:
    """Whether the number was found."""
    return float(state["final_env_response"] is not None)


async def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: a number
        y: another number
    """
    return x + y


def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


def same(completions: list[Any]) -> list[float]:
    """Compare the rollouts of a group."""
    return [0.0 for _ in completions]


def load_environment(kind: str = "single", max_turns: int = 4) -> vf.Environment:
    """Return an environment; `verifiers.load_environment` calls this."""
    rows = Dataset.from_list(SUMS)
    if kind == "single":
        return vf.SingleTurnEnv(dataset=rows, system_prompt="Be brief.", rubric=rubric())
    if kind == "multi":
        scores = vf.Rubric(funcs=[found, guesses], weights=[1.0, 0.0])
        return Guessing(dataset=rows, eval_dataset=rows, max_turns=max_turns, rubric=scores)
    if kind == "tools":
        return vf.ToolEnv(dataset=rows, tools=[add, fail], max_turns=max_turns, rubric=rubric())
    if kind == "group":
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[same]))
    raise ValueError(f"no kind {kind!r}")
