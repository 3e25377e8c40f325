"""Scripts of the built-in tasks of the browser, using tools on elements."""

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
_SCRIPTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "shop-order": [
        ("click", {"element": "18"}),
        ("fill", {"element": "58", "text": "2"}),
        ("click", {"element": "59"}),
        ("click", {"element": "73"}),
        ("fill", {"element": "82", "text": "Ann Lee"}),
        ("fill", {"element": "84", "text": "Mill Lane 4"}),
        ("fill", {"element": "86", "text": "Leeds"}),
        ("click", {"element": "87"}),
        ("click", {"element": "96"}),
        ("click", {"element": "100"}),
        ("answer", {}),
    ],
    "shop-basket": [
        ("fill", {"element": "8", "text": "kettle"}),
        ("click", {"element": "17"}),
        ("click", {"element": "65"}),
        ("click", {"element": "79"}),
        ("goto", {"url": "http://shop.test/product/notebook"}),
        ("fill", {"element": "104", "text": "3"}),
        ("click", {"element": "105"}),
        ("answer", {}),
    ],
    "shop-question": [
        ("select", {"element": "9", "options": ["garden"]}),
        ("select", {"element": "14", "options": ["by price"]}),
        ("click", {"element": "17"}),
        ("answer", {"text": "Garden hose"}),
    ],
    "mail-tidy": [
        ("click", {"element": "19"}),
        ("click", {"element": "34"}),
        ("click", {"element": "49"}),
        ("click", {"element": "67"}),
        ("answer", {}),
    ],
    "mail-delete": [
        ("click", {"element": "17"}),
        ("click", {"element": "35"}),
        ("answer", {}),
    ],
    "mail-reply": [
        ("click", {"element": "21"}),
        ("click", {"element": "36"}),
        ("fill", {"element": "51", "text": "Here they are."}),
        ("click", {"element": "54"}),
        ("answer", {}),
    ],
    "mail-question": [
        ("click", {"element": "13"}),
        ("answer", {"text": "12"}),
    ],
    "wizard-register": [
        ("fill", {"element": "7", "text": "Bo"}),
        ("fill", {"element": "9", "text": "Berg"}),
        ("fill", {"element": "11", "text": "1990-05-17"}),
        ("click", {"element": "21"}),
        ("fill", {"element": "28", "text": "bo@berg.test"}),
        ("fill", {"element": "30", "text": "+45 123 456"}),
        ("select", {"element": "32", "options": ["Denmark"]}),
        ("click", {"element": "39"}),
        ("select", {"element": "47", "options": ["Bookbinding"]}),
        ("click", {"element": "54"}),
        ("check", {"element": "55"}),
        ("click", {"element": "58"}),
        ("check", {"element": "96"}),
        ("click", {"element": "97"}),
        ("answer", {}),
    ],
    "wizard-infeasible": [
        ("give_up", {"reason": "no such course"}),
    ],
}


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
