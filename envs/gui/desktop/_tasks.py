"""Tasks on a desktop: set-up, instruction, and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trajgym.envs import TaskData
from trajgym.envs._records import read_records
from trajgym.envs._tasks import tasks_of
from trajgym.trajectory import InvalidInput, Task

__all__ = [
    "ActivateStep",
    "Check",
    "ClipboardStep",
    "CloseStep",
    "DesktopRecord",
    "LaunchStep",
    "RunStep",
    "SleepStep",
    "Step",
    "WriteStep",
    "load_desktop_tasks",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WriteStep(_Part):
    """Write a text file."""

    do: Literal["write"] = "write"
    path: str
    text: str


class RunStep(_Part):
    """Run a command to its end: an argument vector, or a shell line."""

    do: Literal["run"] = "run"
    command: str | list[str]


class LaunchStep(_Part):
    """Start an application and wait for its window."""

    do: Literal["launch"] = "launch"
    command: list[str] = Field(min_length=1)
    seconds: float = Field(default=30.0, ge=0, le=120)
    title: str = ""
    """Wait until a window's title holds this text, for applications that load slowly."""


class SleepStep(_Part):
    """Wait."""

    do: Literal["sleep"] = "sleep"
    seconds: float = Field(ge=0, le=60)


class ActivateStep(_Part):
    """Give the window whose title holds this text the focus."""

    do: Literal["activate"] = "activate"
    title: str


class CloseStep(_Part):
    """Ask the window whose title holds this text to close."""

    do: Literal["close"] = "close"
    title: str


class ClipboardStep(_Part):
    """Put text on the clipboard."""

    do: Literal["clipboard"] = "clipboard"
    text: str


Step: TypeAlias = Annotated[
    WriteStep | RunStep | LaunchStep | SleepStep | ActivateStep | CloseStep | ClipboardStep,
    Field(discriminator="do"),
]
"""Something done to the desktop before the agent begins, or before it is checked."""


class Check(_Part):
    """A condition on the final state; every test that is given must pass.

    Attributes:
        of: a ``file``'s text, a ``command``'s output, the ``clipboard``'s text, or the titles of
            all ``windows``, one a line.
        name: the file's path, or the command (a shell line or an argument vector).
        exists: whether the file exists; a check of a file without a test requires that it does.
        equals: the whole text.
        one_of: several whole texts, one of which must be equal.
        contains: texts that must all occur in it.
        lacks: texts that must not occur in it.
    """

    of: Literal["file", "command", "clipboard", "windows"]
    name: str | list[str] = ""
    exists: bool | None = None
    equals: str | None = None
    one_of: list[str] | None = None
    contains: list[str] = Field(default_factory=list)
    lacks: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _tests_something(self) -> Self:
        texts = [*self.contains, *self.lacks, *(self.one_of or [])]
        if self.of != "file" and self.exists is None and self.equals is None and not texts:
            raise ValueError(
                "the check tests nothing: give exists, equals, one_of, contains or lacks"
            )
        if "" in (*self.contains, *self.lacks):
            raise ValueError("contains and lacks must not hold empty texts")
        if self.of in {"file", "command"} and not self.name:
            raise ValueError(f"name the {self.of} to look at")
        return self

    def holds(self, found: str | None) -> bool:
        """Return whether a text passes; None stands for a missing file."""
        if self.exists is not None and self.exists != (found is not None):
            return False
        if found is None:
            return self.exists is False
        return (
            (self.equals is None or found == self.equals)
            and (self.one_of is None or found in self.one_of)
            and all(text in found for text in self.contains)
            and not any(text in found for text in self.lacks)
        )


class DesktopRecord(TaskData):
    """The data of a desktop task.

    Attributes:
        instruction: what the agent is asked.
        setup: done in order before the agent begins.
        checks: what must hold at the end.
        any_of: one check is enough; else all must hold.
        before_checks: steps after the agent's last turn and before the checks; those that fail are
            skipped.
        infeasible: whether the task is impossible; an agent solves it by giving up.
        source: the origin of the record.
    """

    instruction: str = Field(min_length=1)
    setup: list[Step] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)
    any_of: bool = False
    before_checks: list[Step] = Field(default_factory=list)
    infeasible: bool = False
    source: str = ""

    @classmethod
    def of(cls, task: Task, where: str = "") -> Self:
        """Read a task's data; see :meth:`TaskData.of`.

        Raises:
            InvalidInput: a field is malformed, or the task checks nothing; the message names the
                field.
        """
        record = super().of(task, where)
        if not record.checks and not record.infeasible:
            raise InvalidInput(
                f"task {task.id!r}: no checks: every attempt would have the same result"
            )
        return record

    def task(self, identity: str) -> Task:
        """Return the task of this record."""
        return Task(id=identity, prompt=self.instruction, data=self.model_dump(exclude_none=True))


def load_desktop_tasks(source: str) -> list[Task]:
    """Return desktop tasks.

    Args:
        source: ``builtin``, or a JSON or JSONL file of tasks of our own form or of OSWorld's
            records (those that can't run here are an error; see :func:`osworld_tasks`).

    Raises:
        InvalidInput: there is no such file, or a record is malformed or can't run here.
    """
    from trajgym.envs.gui.desktop._builtin import builtin_tasks
    from trajgym.envs.gui.desktop._osworld import is_osworld, osworld_task

    if source == "builtin":
        return builtin_tasks()
    if not Path(source).exists():
        raise InvalidInput(f"tasks {source!r}: no such file; or use 'builtin'")
    records = (
        record._replace(value=osworld_task(record.value).model_dump())
        if is_osworld(record.value)
        else record
        for record in read_records(source)
    )
    return tasks_of(records, data=DesktopRecord)
