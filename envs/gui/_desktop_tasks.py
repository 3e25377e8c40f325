"""Tasks on a desktop: what is set up, what is asked, and what must hold afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class SleepStep(_Part):
    """Let time pass."""

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
    """What must hold of something afterwards; every test that is given must pass.

    Attributes:
        of: a ``file``'s text, a ``command``'s output, the ``clipboard``'s text, or the titles of
            all ``windows``, one a line.
        name: the file's path, or the command (a shell line or an argument vector).
        exists: whether the file is there at all.
        equals: the whole text.
        one_of: several whole texts, of which one.
        contains: texts in it, all of them.
        lacks: texts that are not in it.
    """

    of: Literal["file", "command", "clipboard", "windows"]
    name: str | list[str] = ""
    exists: bool | None = None
    equals: str | None = None
    one_of: list[str] | None = None
    contains: list[str] = Field(default_factory=list)
    lacks: list[str] = Field(default_factory=list)

    def holds(self, found: str | None) -> bool:
        """Return whether what was found passes; None is a file that is not there."""
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


class DesktopRecord(_Part):
    """The data of a desktop task.

    Attributes:
        instruction: what the agent is asked.
        setup: done in order before the agent begins.
        checks: what must hold at the end.
        any_of: one check is enough; else all must hold.
        before_checks: done after the agent's last turn and before the checks, as far as they go.
        infeasible: it can't be done; solved by an agent that gives up.
        source: where the record is from.
    """

    instruction: str = Field(min_length=1)
    setup: list[Step] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)
    any_of: bool = False
    before_checks: list[Step] = Field(default_factory=list)
    infeasible: bool = False
    source: str = ""

    @classmethod
    def of(cls, task: Task) -> DesktopRecord:
        """Read a task's data.

        Raises:
            InvalidInput: with the field and what is wrong, or nothing is checked.
        """
        try:
            record = cls.model_validate(task.data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise InvalidInput(f"task {task.id!r}: {where}: {first['msg']}") from error
        if not record.checks and not record.infeasible:
            raise InvalidInput(f"task {task.id!r}: no checks: it could never be solved or missed")
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
        InvalidInput: no such file, or a record that is malformed or can't run here.
    """
    from trajgym.envs.gui._desktop_builtin import builtin_tasks
    from trajgym.envs.gui._desktop_osworld import is_osworld, osworld_task

    if source == "builtin":
        return builtin_tasks()
    tasks: list[Task] = []
    for number, item in enumerate(_items(Path(source))):
        if is_osworld(item):
            tasks.append(osworld_task(item))
            continue
        try:
            task = Task.model_validate(item)
        except ValidationError as error:
            raise InvalidInput(f"{source}: record {number}: {error}") from error
        DesktopRecord.of(task)
        tasks.append(task)
    return tasks


def _items(path: Path) -> Iterable[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"tasks {str(path)!r}: {error.strerror}; or use 'builtin'") from error
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"tasks {str(path)!r}: not JSON: {error}") from error
    return found if isinstance(found, list) else [found]
