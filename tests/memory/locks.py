"""An environment whose tasks have something in common, and an agent that can read it."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from trajgym.envs import Budgets, Env, ToolError, ToolResult, register, tool
from trajgym.rollout import PolicyRequest, ScriptedPolicy, call
from trajgym.trajectory import Message, Task, text_of

CODES = {"harbour": 7, "castle": 4, "station": 9}
COLOURS = ("red", "blue", "green", "black", "white", "brown")


@register("test/locks")
class Locks(Env):
    """All locks of a place have the same code, which the tasks do not say."""

    budgets = Budgets(turns=3)

    def __init__(self, opening: str = "text") -> None:
        self.opening = opening

    def reset(self, task: Task, seed: int | None) -> str | ToolResult | list[Message]:
        self.place, self.open = task.data["place"], False
        prompt = task.prompt or f"Open some lock of the {self.place}."
        if self.opening == "result":
            return ToolResult(content=prompt, signals={"place": self.place})
        if self.opening == "messages":
            return [{"role": "system", "content": "Be quick."}, {"role": "user", "content": prompt}]
        return prompt

    @tool
    def turn(self, code: int) -> ToolResult:
        """Enter a code.

        Args:
            code: a digit.
        """
        if code > 9:
            raise ToolError(f"CodeError: {code} has two digits")
        self.open = code == CODES[self.place]
        return ToolResult(content="it opens" if self.open else "it stays shut", done=self.open)

    def verify(self) -> bool:
        return self.open


@register("test/later-locks")
class LaterLocks(Locks):
    """Opens asynchronously."""

    async def reset(self, task: Task, seed: int | None) -> str | ToolResult | list[Message]:  # type: ignore[override]
        return super().reset(task, seed)


def lock(place: str, colour: str) -> Task:
    return Task(
        id=f"{place}-{colour}",
        prompt=f"Open the {colour} lock of the {place}.",
        data={"place": place},
    )


def locks(*colours: str) -> list[Task]:
    return [lock(place, colour) for place in CODES for colour in colours]


def reader() -> ScriptedPolicy:
    """Tries the code that a demonstration in its opening shows; guesses 0, 1 and 2 without one."""

    def script(request: PolicyRequest) -> Generator[Message, Sequence[Message], None]:
        shown = "\n".join(text_of(message) for message in request.messages)
        known = re.findall(r'turn\(\{"code": (\d)\}\)\n   -> it opens', shown)
        for guess in [*map(int, known), 0, 1, 2]:
            yield call("turn", code=guess)

    return ScriptedPolicy(script)


def expert() -> ScriptedPolicy:
    """Knows the codes; makes one mistake first."""

    def script(request: PolicyRequest) -> Generator[Message, Sequence[Message], None]:
        assert request.task is not None
        yield call("turn", code=10)
        yield call("turn", code=CODES[request.task.data["place"]])

    return ScriptedPolicy(script)
