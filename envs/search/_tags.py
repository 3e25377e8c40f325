"""The tag protocol: actions in free text."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["Action", "actions_of"]

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class Action(NamedTuple):
    """What a message asks for."""

    kind: Literal["search", "answer"]
    text: str


def actions_of(text: str) -> list[Action]:
    """Return the actions of a message in order, up to its first answer.

    Thoughts hold none, and nothing counts after an ``<information>`` that the model made up.
    """
    said = _THOUGHT.sub("", text).partition("<information>")[0]
    actions: list[Action] = []
    for match in _ACTION.finditer(said):
        if match[1] == "answer":
            actions.append(Action("answer", match[2].strip()))
            break
        actions.append(Action("search", match[2].strip()))
    return actions
