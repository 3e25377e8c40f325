"""What a scripted agent does in the built-in tasks of the browser, with tools on elements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Message, Task

__all__ = ["browser_script"]

# Ids of elements are given in the order in which they are first seen, so that a script can know
# them: a test plays every script in a real browser.
_SCRIPTS: dict[str, list[tuple[str, dict[str, Any]]]] = {}


def browser_script(task: Task, sample: int) -> list[Message]:
    """Return the turns of a scripted agent; in every third sample it ends too early.

    Raises:
        InvalidInput: there is no script for this task.
    """
    steps = _SCRIPTS.get(task.id)
    if steps is None:
        raise InvalidInput(f"there is no script for task {task.id!r}; known: {', '.join(_SCRIPTS)}")
    if sample % 3 == 2:
        steps = [*steps[: len(steps) // 2], ("answer", {"text": "I do not know"})]
    return [_said(steps, at) for at in range(len(steps))]


def _said(steps: Sequence[tuple[str, dict[str, Any]]], at: int) -> Message:
    name, arguments = steps[at]
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{at}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
