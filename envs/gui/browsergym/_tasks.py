"""Tasks that name a task class of BrowserGym."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from trajgym.envs import TaskData, load_tasks
from trajgym.envs.gui.browser import miniwob_names
from trajgym.trajectory import InvalidInput, Task

__all__ = ["BrowserGymRecord", "load_browsergym_tasks"]

_NAME = re.compile(r"(browsergym/)?\w[\w.-]*|\w+(\.\w+)*:\w+")
_MINIWOB = "miniwob"


class BrowserGymRecord(TaskData):
    """The :attr:`Task.data` of a task of BrowserGym.

    Attributes:
        task: the id under which a task is registered (``miniwob.click-test``, ``openended``), or
            ``module:Class`` of a task class.
        arguments: keyword arguments of the class, in addition to the seed.
    """

    task: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @field_validator("task")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is neither a task's id nor module:Class")
        return name


def load_browsergym_tasks(source: str) -> list[Task]:
    """Return tasks of BrowserGym.

    Args:
        source: ``miniwob`` or ``builtin`` for all MiniWoB++ tasks, ids separated by commas
            (``miniwob.click-test,miniwob.login-user``), or a file of tasks with
            ``{"task": ..., "arguments": {...}}`` as data.

    Raises:
        InvalidInput: there is no such file, or a task is malformed.
        MissingExtra: the package ``miniwob`` is not installed.
    """
    if source in {_MINIWOB, "builtin"}:
        return [_task(f"{_MINIWOB}.{name}") for name in miniwob_names()]
    if source.endswith((".json", ".jsonl")):
        return load_tasks(source, data=BrowserGymRecord)
    names = [name.strip() for name in source.split(",")]
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is neither a file nor a task of BrowserGym")
    return [_task(name) for name in names]


def _task(name: str) -> Task:
    return Task(id=re.sub(r"[^\w.-]", "-", name), data={"task": name})
