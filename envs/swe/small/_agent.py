"""A scripted agent for small tasks that makes mistakes at a given rate."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from trajgym.envs.swe.small._package import wrong_lines
from trajgym.envs.swe.small._tasks import CHECK, package_of

if TYPE_CHECKING:
    from trajgym.envs.swe.small._package import Bug
    from trajgym.trajectory import Message, Task

__all__ = ["small_agent"]

_REPEATS, _ASTRAY, _BLIND = 0.15, 0.15, 0.1
"""Probabilities, to be multiplied by ``mistakes``, of running the check twice, of viewing the other
module, and of editing a module without viewing it."""
_QUITS = 0.15
_RETRIES = 0.5


def small_agent(task: Task, sample: int, *, mistakes: float = 0.0) -> list[Message]:
    """Return the assistant messages of one session.

    The script is generated from the list of bugs, which a real agent does not have. It runs the
    check; for each bug, it views the module, edits it and runs the check again; then it submits.

    Args:
        task: one of :func:`small_tasks`.
        sample: number of the session; it selects the mistakes.
        mistakes: probability that an edit is wrong; a wrong edit is corrected with probability
            0.5. With lower probabilities, the agent also runs the check twice, views the wrong
            module, edits without viewing, and submits too early.
    """
    package = package_of(task)
    chance = random.Random(f"{task.id} {sample}")  # noqa: S311  # repeatable
    script = _Script()
    script.check()
    left = list(package.bugs)
    modules = [path for path in package.files if path.count("/") and "__init__" not in path]
    while left:
        if chance.random() < _QUITS * mistakes:
            break
        bug = left.pop(0)
        if chance.random() < _REPEATS * mistakes:
            script.check()
        if chance.random() < _ASTRAY * mistakes:
            script.call("view", path=next(path for path in modules if path != bug.file))
        if chance.random() >= _BLIND * mistakes:
            script.call("view", path=bug.file)
        line = bug.wrong
        while line != bug.right:
            new = _wrong(bug, line, chance) if chance.random() < mistakes else bug.right
            script.call("str_replace", path=bug.file, old=line, new=new)
            script.check()
            line = new
            if line != bug.right and chance.random() >= _RETRIES:
                break
    script.call("submit")
    return script.messages


def _wrong(bug: Bug, line: str, chance: random.Random) -> str:
    others = [one for one in wrong_lines(bug.right) if one != line]
    return chance.choice(others) if others else bug.right


class _Script:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def check(self) -> None:
        self.call("bash", command=CHECK)

    def call(self, name: str, /, **arguments: Any) -> None:
        function = {"name": name, "arguments": json.dumps(arguments)}
        made = {"id": f"call_{len(self.messages)}", "type": "function", "function": function}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
