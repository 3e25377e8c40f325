"""A scripted agent for the built-in desktop tasks; some of its samples fail."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.trajectory import Message, Task

__all__ = ["demo_script"]


def _use(action: str, **arguments: Any) -> Message:
    return _call("computer", action=action, **arguments)


def _call(name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call", "type": "function", "function": function}],
    }


_DONE: Message = {"role": "assistant", "content": "It is done."}
_KEYS = [[639, 475], [509, 395], [704, 435], [509, 435], [639, 475], [769, 495]]
"""Positions of the calculator's keys 3, 7, *, 4, 3 and =."""
_SCRIPTS: dict[str, list[Message]] = {
    "shopping-list": [
        _use("left_click", coordinate=[700, 500]),
        _use("key", text="ctrl+End"),
        _use("type", text="eggs\n"),
        _use("key", text="ctrl+s"),
    ],
    "spelling": [
        _use("key", text="ctrl+r"),
        _use("type", text="colour\tcolor"),
        _use("left_click", coordinate=[444, 466]),
        _use("left_click", coordinate=[723, 505]),
        _use("left_click", coordinate=[811, 505]),
        _use("key", text="ctrl+s"),
    ],
    "rename": [
        _use("left_click", coordinate=[526, 225]),
        _use("key", text="F2"),
        _use("key", text="ctrl+a"),
        _use("type", text="final.txt"),
        _use("key", text="Return"),
    ],
    "product": [
        *(_use("left_click", coordinate=place) for place in _KEYS),
        _use("key", text="ctrl+c"),
    ],
    "logs": [
        _use("type", text="cd; mkdir old && mv *.log old\n"),
    ],
    "paste": [
        _use("key", text="ctrl+v"),
        _use("key", text="ctrl+s"),
        _use("key", text="ctrl+q"),
    ],
    "budget": [
        _use("key", text="ctrl+Home Right Down Down"),
        _use("type", text="=SUM(B1:B2)\n"),
        _use("key", text="ctrl+s"),
        _use("wait", duration=2),
    ],
    "eject": [_use("screenshot"), _call("give_up", reason="There is no drive.")],
}


def demo_script(task: Task, sample: int) -> list[Message]:
    """Return the assistant messages of one scripted session.

    Every third sample leaves out its last action, so that groups have mixed outcomes.

    Raises:
        InvalidInput: the task is none of the built-in ones.
    """
    steps = _SCRIPTS.get(task.id)
    if steps is None:
        raise InvalidInput(f"the scripted agent knows the built-in desktop tasks, not {task.id!r}")
    kept = steps[:-1] if sample % 3 == 2 else steps
    return copy.deepcopy([*kept, _DONE])
