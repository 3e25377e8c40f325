"""Mistakes in an environment's code or a run's arguments: errors say what, where and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.worlds import call
from trajgym.envs import Env, EnvSpec, Session, register, tool
from trajgym.rollout import ScriptedPolicy, collect
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from decimal import Decimal as Hidden
    from pathlib import Path

TASK = Task(id="a")


async def _forgotten() -> str:
    raise AssertionError("never awaited")


def _given(what: str) -> Any:
    return {"coroutine": _forgotten, "None": lambda: None}[what]()


@register("mistakes/returns")
class Returns(Env):
    """One of its methods returns what it must not."""

    def __init__(self, at: str, what: str) -> None:
        self.at, self.what = at, what

    def _or(self, at: str, value: Any) -> Any:
        return _given(self.what) if at == self.at else value

    async def reset(self, task: Task, seed: int | None) -> Any:
        return self._or("reset", "go")

    @tool
    async def act(self) -> Any:
        """Act."""
        return self._or("act", "done")

    @tool
    def draw(self) -> str:
        """Take one from nothing."""
        return next(iter(()))

    async def verify(self) -> Any:
        return self._or("verify", 1.0)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("at", ["reset", "act", "verify"])
@pytest.mark.parametrize(
    ("what", "said"),
    [("coroutine", "coroutine (is an `await` missing?); return"), ("None", "None; return")],
)
async def test_a_wrong_value_is_described(at: str, what: str, said: str) -> None:
    """A coroutine in place of a value hints at the missing await; None is called None."""
    async with Session(EnvSpec(id="mistakes/returns", config={"at": at, "what": what}), TASK) as s:
        for message in (call(("act", "{}")), "The end."):
            if not s.done:
                await s.step(message)
    assert s.status.kind == "failed"
    assert f"returned {said}" in s.attempt.cause


async def test_the_end_of_an_iterator_names_the_method() -> None:
    """The cause is the same in every process: it has no address."""
    async with Session(EnvSpec(id="mistakes/returns", config={"at": "", "what": ""}), TASK) as s:
        await s.step(call(("draw", "{}")))
    assert s.attempt.cause == "RuntimeError: Returns.draw raised StopIteration: "


@pytest.mark.parametrize("name", ["close", "respond", "restore", "note_signals"])
def test_a_tool_does_not_replace_a_method_of_env(name: str) -> None:
    """The definition is refused: the session would call the tool as its own method."""

    def function(self: Any) -> str:
        """Act."""
        return ""

    function.__name__ = name
    with pytest.raises(InvalidInput, match=rf"Door\.{name}: .*@tool\(name=\"{name}\"\)"):
        type("Door", (Env,), {name: tool(function)})
    door = type("Door", (Env,), {"act": tool(name=name)(function)})
    assert issubclass(door, Env)


def test_type_hints_that_cannot_be_read_are_named() -> None:
    """A type that is imported for type checkers only has no JSON schema."""

    @register("mistakes/hints")
    class Hints(Env):
        @tool
        def pay(self, amount: Hidden) -> str:
            """Pay."""
            return ""

    with pytest.raises(InvalidInput, match=r"Hints\.pay: .*name 'Hidden' is not defined; define"):
        Session(EnvSpec(id="mistakes/hints"), TASK)


async def _drawn() -> AsyncIterator[Any]:
    yield {"id": "a"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"spec": Returns}, r"environment is the class Returns; give EnvSpec"),
        ({"spec": "mistakes/returns"}, r"environment is a str; give EnvSpec"),
        ({"tasks": [{"id": "a"}]}, r"a task is a dict; give Task\(id=...\): load_tasks"),
        ({"tasks": iter(["a"])}, r"a task is a str; give Task"),
        ({"tasks": _drawn()}, r"a task is a dict; give Task"),
        ({"tasks": "tasks.jsonl"}, r"tasks is the text 'tasks.jsonl'; read them by load_tasks"),
        ({"policy": ScriptedPolicy}, r"policy is the class ScriptedPolicy; give an instance"),
        ({"policy": lambda request: "x"}, r"policy is a function; .*ScriptedPolicy\(...\) takes"),
    ],
)
async def test_other_types_of_a_runs_arguments_are_named(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    """What a run was given, and what to give it."""
    spec = EnvSpec(id="mistakes/returns", config={"at": "", "what": ""})
    given = {"spec": spec, "tasks": [TASK], "policy": ScriptedPolicy(["x"]), **changed}
    with pytest.raises(InvalidInput, match=said):
        await collect(given["spec"], given["tasks"], given["policy"], tmp_path)
