"""The tag protocol: actions in free text."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["Action", "actions_of"]

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_CITATION = re.compile(r"<cite>(.*?)</cite>", re.DOTALL)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class Action(NamedTuple):
    """An action of a message."""

    kind: Literal["search", "answer"]
    text: str
    citations: tuple[str, ...] = ()
    """Ids that an answer cites in ``<cite>``, separated by commas or blanks."""


def actions_of(text: str) -> list[Action]:
    """Return the actions of a message in order, up to its first answer.

    Text in ``<think>``, and text after an ``<information>`` that the model wrote itself, is
    ignored.
    """
    said = _THOUGHT.sub("", text).partition("<information>")[0]
    actions: list[Action] = []
    for match in _ACTION.finditer(said):
        if match[1] == "answer":
            answer = _CITATION.sub("", match[2]).strip()
            cited = " ".join(_CITATION.findall(match[2])).replace(",", " ").split()
            actions.append(Action("answer", answer, tuple(cited)))
            break
        actions.append(Action("search", match[2].strip()))
    return actions
