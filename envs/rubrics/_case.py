"""The argument of a rubric's functions: one recorded attempt at one task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.trajectory import InvalidInput, text_of, tool_calls_of

if TYPE_CHECKING:
    from trajgym.trajectory import Attempt, CallStatus, Message, SessionTree, Task, Turn

__all__ = ["Call", "Case", "Judgment", "judgment_signal"]

_SIGNAL = "judgment:"


def judgment_signal(name: str) -> str:
    """Return the name of the signal that holds the judgment of a rubric part."""
    return f"{_SIGNAL}{name}"


class Judgment(NamedTuple):
    """A judge's prompt about an attempt, its answer, and the value read from the answer."""

    prompt: str
    answer: str
    value: float
    """The value read from the answer, between 0 and 1."""
    policy: str
    """The model, as ``kind:name``."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the recorded form; fields that are None are left out."""
        return {key: value for key, value in self._asdict().items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Judgment:
        """Read the form that :meth:`to_json` writes.

        Raises:
            InvalidInput: ``data`` has another form.
        """
        try:
            found = cls(**data)
        except TypeError as error:
            raise InvalidInput(f"not a judgment: {error}") from error
        value: object = found.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidInput(f"not a judgment: value is {value!r:.80}; expected 0 to 1")
        return found


class Call(NamedTuple):
    """A tool call of the agent."""

    name: str
    arguments: Any
    """The parsed JSON; the original text if it is not valid JSON."""
    status: CallStatus
    result: str
    """The text that was returned to the agent."""


@dataclass(frozen=True, slots=True)
class Case:
    """One attempt, for rubrics: recorded facts only, so that it can be scored again at any time.

    Args:
        task: the problem instance.
        tree: the session.
        attempt: the session's attempt, in its final state but without an outcome.
        facts: facts about the environment's final state (:meth:`trajgym.envs.Env.facts`).
        judgments: the judges' answers, by the name of the part.
    """

    task: Task
    tree: SessionTree
    attempt: Attempt
    facts: Mapping[str, Any] = field(default_factory=dict)
    judgments: Mapping[str, Judgment] = field(default_factory=dict)

    @classmethod
    def recorded(cls, task: Task, tree: SessionTree, attempt: Attempt) -> Case:
        """Return the case of a stored attempt, with its recorded facts and judgments.

        A judgment that an annotator recorded replaces one that the environment obtained.

        Raises:
            InvalidInput: facts or judgments in the record have another form.
        """
        details = attempt.outcome.details if attempt.outcome is not None else {}
        found = dict(_mapping(details, "judgments"))
        if attempt.leaf is not None:
            for name, value in tree.turns[attempt.leaf].signals.items():
                if name.startswith(_SIGNAL):
                    found[name.removeprefix(_SIGNAL)] = value
        judgments = {name: Judgment.from_json(value) for name, value in found.items()}
        unscored = replace(attempt, outcome=None)
        return cls(task, tree, unscored, _mapping(details, "facts"), judgments)

    @property
    def turns(self) -> list[Turn]:
        """The main agent's turns, first to last."""
        return [turn for turn in self.tree.trajectory(self.attempt) if turn.agent == "main"]

    @property
    def messages(self) -> list[Message]:
        """The whole conversation: opening messages, answers and observations."""
        turns = self.turns
        return self.tree.conversation(turns[-1]) if turns else []

    @property
    def answer(self) -> str:
        """The text of the agent's last message; empty if there is no text or no message."""
        turns = self.turns
        return text_of(turns[-1].message) if turns else ""

    @property
    def calls(self) -> list[Call]:
        """The agent's tool calls, in order."""
        return [call for turn in self.turns for call in _calls(turn)]


def _mapping(details: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = details.get(name, {})
    if not isinstance(found, Mapping):
        raise InvalidInput(f"outcome.details[{name!r}] is {type(found).__name__}, not an object")
    return found


def _calls(turn: Turn) -> list[Call]:
    statuses = {call.call_id: call.status for call in turn.calls}
    results = {m.get("tool_call_id"): text_of(m) for m in turn.observation if m["role"] == "tool"}
    found = []
    for call in tool_calls_of(turn.message):
        text: str = call["function"]["arguments"]
        try:
            arguments: Any = json.loads(text or "{}")
        except ValueError:
            arguments = text
        found.append(
            Call(
                name=call["function"]["name"],
                arguments=arguments,
                status=statuses.get(call["id"], "not_executed"),
                result=results.get(call["id"], ""),
            )
        )
    return found
