"""Browser tasks: where they begin, what they ask, how they are verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trajgym.envs import load_tasks
from trajgym.envs.gui._browser_builtin import BUILTIN_TASKS
from trajgym.envs.gui._goals import Condition  # noqa: TC001 - pydantic reads it
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BrowserRecord", "load_browser_tasks"]

BUILTIN = "builtin"


class BrowserRecord(BaseModel):
    """A task in a browser: what :attr:`Task.data` holds.

    Attributes:
        instruction: what the agent is asked to do.
        start_url: where it begins.
        sites: the library's own sites that are served, like ``shop`` at ``http://shop.test/``.
        pages: files served at ``http://pages.test/``, ``{path: text}``.
        hosts: where other host names lead, ``{"wiki.example": "10.0.0.5:8000"}``.
        network: whether pages may reach what the host can reach; off unless the task needs it.
        checks: what shall hold of the sites' states in the end, all of it.
        answer: what the agent shall say; compared without case, spaces and a final full stop.
        answer_includes: texts that its answer must hold.
        infeasible: whether giving up is what is right.
        replayable: whether doing everything again leads to the same state; forks need it. Say
            False where sites are shared with others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    instruction: str = Field(min_length=1)
    start_url: str = "about:blank"
    sites: list[Literal["shop", "mail", "wizard"]] = Field(default_factory=list)
    pages: dict[str, str] = Field(default_factory=dict)
    hosts: dict[str, str] = Field(default_factory=dict)
    network: bool = False
    checks: list[Condition] = Field(default_factory=list)
    answer: str | None = None
    answer_includes: list[str] = Field(default_factory=list)
    infeasible: bool = False
    replayable: bool = True

    @classmethod
    def of(cls, task: Task) -> Self:
        """Read a task.

        Raises:
            InvalidInput: it is no browser task; the message names the field.
        """
        try:
            return cls.model_validate(task.data)
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}"
                for e in error.errors(include_url=False, include_context=False, include_input=False)
            )
            raise InvalidInput(f"task {task.id!r} is no browser task: {wrong}") from error

    def said(self, answer: str) -> bool:
        """Whether an answer is what the task asks for; True if it asks for none."""
        plain = _plain(answer)
        exact = self.answer is None or plain == _plain(self.answer)
        return exact and all(_plain(part) in plain for part in self.answer_includes)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


def load_browser_tasks(source: str) -> list[Task]:
    """Return browser tasks.

    Args:
        source: ``builtin``, names of built-in tasks divided by commas, or a file of tasks.

    Raises:
        InvalidInput: there is no such task, or the file is not there or holds something else.
    """
    names = list(BUILTIN_TASKS) if source == BUILTIN else source.split(",")
    if all(name in BUILTIN_TASKS for name in names):
        return [Task(id=name, data=BUILTIN_TASKS[name]) for name in names]
    tasks = load_tasks(source)
    for task in tasks:
        BrowserRecord.of(task)
    return tasks
