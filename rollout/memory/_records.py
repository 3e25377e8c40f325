"""What a memory holds: demonstrations, lessons, cases and notes on tools, with their evidence."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Case",
    "Demonstration",
    "Effect",
    "Evidence",
    "FailedCall",
    "Failure",
    "Kind",
    "Lesson",
    "MemoryRecord",
    "Record",
    "Repeat",
    "Step",
    "Subtask",
    "ToolNote",
    "record_id",
]

Kind: TypeAlias = Literal["demonstration", "lesson", "case", "subtask", "tool"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evidence(_Part):
    """Where a record comes from.

    Attributes:
        session: id of the session.
        attempt: index of the attempt.
        turns: indices of the turns that show it.
    """

    session: str
    attempt: int = 0
    turns: tuple[int, ...] = ()


class Effect(_Part):
    """The measured effect of a record; see :func:`measure_effect`.

    Attributes:
        value: solved share with the record minus without it, averaged over tasks.
        low: lower end of the 95% interval; None with fewer than two tasks.
        high: upper end.
        tasks: number of tasks that were attempted both with and without it.
    """

    value: float
    low: float | None = None
    high: float | None = None
    tasks: int = 0


class Step(_Part):
    """A turn of a demonstration: the action, and the first lines of what followed."""

    turn: int
    action: str
    result: str = ""


class FailedCall(_Part):
    """A tool call that failed.

    Attributes:
        turn: index of its turn.
        tool: the tool that was called.
        status: ``error``, ``invalid`` or ``timeout``.
        arguments: JSON text of the arguments, shortened.
        error: the line that names the error.
    """

    turn: int
    tool: str
    status: str
    arguments: str = ""
    error: str = ""


class Repeat(_Part):
    """An action that was repeated and gave the same observation each time."""

    action: str
    turns: tuple[int, ...]


class Failure(_Part):
    """What failed where in an attempt, found without a model.

    Attributes:
        status: how the attempt ended, such as ``completed`` or ``truncated:turns``.
        score: its score.
        turns: number of its turns.
        first_failed_call: the first tool call that failed; None if none did.
        repeats: actions that gave the same observation more than once.
        last_error: the last line of an observation that names an error.
    """

    status: str
    score: float
    turns: int
    first_failed_call: FailedCall | None = None
    repeats: tuple[Repeat, ...] = ()
    last_error: str = ""


class Record(_Part):
    """What all records have.

    Attributes:
        id: unique in the memory.
        tasks: ids of the tasks it was learnt from.
        query: text of the task, with which it is found.
        text: what an agent is shown.
        source: ``structural`` for a text that was written without a model, otherwise
            ``model:<policy>``.
        evidence: the sessions and turns it was learnt from.
        merged: ids of the records that were merged into it.
        effect: its measured effect; None before it was measured.
        retired: why it is no longer retrieved; empty while it is.
    """

    id: str = Field(min_length=1)
    tasks: tuple[str, ...]
    query: str
    text: str
    source: str = "structural"
    evidence: tuple[Evidence, ...]
    merged: tuple[str, ...] = ()
    effect: Effect | None = None
    retired: str = ""


class Demonstration(Record):
    """An attempt that solved its task."""

    kind: Literal["demonstration"] = "demonstration"
    steps: tuple[Step, ...] = ()


class Lesson(Record):
    """What to learn from attempts that did not solve their task."""

    kind: Literal["lesson"] = "lesson"
    failure: Failure | None = None


class Case(Record):
    """One decision: a state, the action taken in it, and how the attempt ended.

    Memento's case (arXiv 2508.16153): retrieved for planning, positive and negative ones.

    Attributes:
        state: what the agent saw last.
        action: what it did.
        result: what followed.
        score: of the attempt.
        positive: whether the attempt solved its task.
    """

    kind: Literal["case"] = "case"
    state: str
    action: str
    result: str
    score: float
    positive: bool


class Subtask(Record):
    """Work that was handed to a sub-agent, found by the sub-agent's own prompt.

    Attributes:
        agent: name of the sub-agent.
        steps: its turns.
        positive: whether the attempt that it was part of solved its task.
    """

    kind: Literal["subtask"] = "subtask"
    agent: str
    steps: tuple[Step, ...] = ()
    positive: bool


class ToolNote(Record):
    """How the calls of a tool ended, its most frequent errors, and a call that worked.

    Attributes:
        tool: name of the tool.
        calls: number of calls by status.
        errors: number of failed calls by the line that names the error.
        example: JSON text of the arguments of a call that worked.
    """

    kind: Literal["tool"] = "tool"
    tool: str
    calls: dict[str, int] = Field(default_factory=dict)
    errors: dict[str, int] = Field(default_factory=dict)
    example: str = ""

    @property
    def written(self) -> str:
        """The text that these counts give."""
        total = sum(self.calls.values())
        lines = [f"{self.tool}: {self.calls.get('ok', 0)} of {total} calls succeeded."]
        if self.example:
            lines.append(f"A call that succeeded: {self.tool}({self.example})")
        often = sorted(self.errors.items(), key=lambda one: (-one[1], one[0]))[:3]
        lines += [f"Failed {count} times: {error}" for error, count in often]
        return "\n".join(lines)


MemoryRecord: TypeAlias = Annotated[
    Demonstration | Lesson | Case | Subtask | ToolNote, Field(discriminator="kind")
]


def record_id(kind: Kind, *parts: Any) -> str:
    """Return an id that depends on the contents alone, so that building again gives it again."""
    text = "\x00".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return f"{kind}-{hashlib.sha256(text).hexdigest()[:12]}"
