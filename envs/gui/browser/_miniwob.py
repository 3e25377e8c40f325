"""MiniWoB++ as an environment: its own pages, seeds and rewards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from trajgym.envs import Budgets, TaskData, load_tasks
from trajgym.envs.gui.browser._env import BrowserEnvBase
from trajgym.envs.gui.browser._sandbox import miniwob_html
from trajgym.trajectory import InvalidInput, Outcome, Task

if TYPE_CHECKING:
    from trajgym.envs.gui.browser._look import BrowserLook
    from trajgym.trajectory import Message

__all__ = ["MiniWobEnv", "load_miniwob_tasks", "miniwob_names"]

_BUILTIN = "miniwob"
_SIZE = (320, 240)
_FIRST = ("click-test", "click-test-2", "focus-text")
"""Tasks that are solved by a click on the first element after their text."""


def miniwob_names() -> list[str]:
    """Return the names of all MiniWoB++ tasks, sorted.

    Raises:
        MissingExtra: the package ``miniwob`` is not installed.
    """
    return sorted(path.stem for path in (miniwob_html() / "miniwob").glob("*.html"))


def load_miniwob_tasks(source: str) -> list[Task]:
    """Return MiniWoB++ tasks.

    Args:
        source: ``miniwob`` or ``builtin`` for all of them, names separated by commas
            (``click-button,login-user``), or a file of tasks with ``{"name": ...}`` as data.

    Raises:
        InvalidInput: there is no such task or file.
        MissingExtra: the package ``miniwob`` is not installed.
    """
    known = miniwob_names()
    if source in {_BUILTIN, "builtin"}:
        return [_task(name) for name in known]
    names = [name.strip() for name in source.split(",")]
    if all(name in known for name in names):
        return [_task(name) for name in names]
    if not source.endswith((".json", ".jsonl")):
        wrong = next(name for name in names if name not in known)
        raise InvalidInput(f"there is no MiniWoB++ task {wrong!r}")
    return load_tasks(source, data=MiniWobRecord)


def _task(name: str) -> Task:
    return Task(id=f"miniwob-{name}", data={"name": name})


class MiniWobRecord(TaskData):
    """The data of a MiniWoB++ task: the name of its page."""

    name: str

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in miniwob_names():
            raise ValueError(f"there is no MiniWoB++ task {name!r}")
        return name


class MiniWobEnv(BrowserEnvBase):
    """A MiniWoB++ task: ``trajgym.envs`` id ``miniwob``.

    The score is the page's raw reward, or its reward that decreases with time. Both are in the
    outcome's details, with the page's reason. There is one episode per session; leaving its page
    ends it with 0. The agent can't run scripts in the page, so it can't end the episode itself. The
    seed of the session is the seed of the page.

    Args:
        time_decay: score the reward that decreases linearly with time.
        episode_seconds: the page's own time limit, with which a page ends with -1. The page's
            default of 10 s suits policies that act within milliseconds; language models need more.
        hide_query: whether the task's text in the page is hidden; the agent gets it in the prompt.
        size: width and height of the page; tasks use the upper left 160 x 210.
        options: see :class:`BrowserEnvBase`.
    """

    task_data = MiniWobRecord
    budgets: ClassVar[Budgets] = Budgets(turns=20, seconds=600.0, seconds_per_turn=300.0)
    needs_miniwob: ClassVar[bool] = True
    storable: ClassVar[bool] = False

    def __init__(
        self,
        *,
        time_decay: bool = False,
        episode_seconds: float = 600.0,
        hide_query: bool = False,
        size: tuple[int, int] = _SIZE,
        **options: Any,
    ) -> None:
        super().__init__(size=size, **options)
        if not 1 <= episode_seconds <= 86_400:
            raise InvalidInput("episode_seconds must be between 1 and 86400")
        self.time_decay = time_decay
        self.episode_seconds = episode_seconds
        self.hide_query = hide_query

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return MiniWoB++ tasks; see :func:`load_miniwob_tasks`."""
        return load_miniwob_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return a click on the first element in the simplest tasks; odd samples do nothing.

        Raises:
            InvalidInput: the task is not as simple as that.
        """
        if MiniWobRecord.of(task).name not in _FIRST:
            raise InvalidInput(
                f"there is no script for {task.id!r}, only for {', '.join(_FIRST)}; use a model"
            )
        name, arguments = ("click", {"element": "2"}) if sample % 2 == 0 else ("answer", {})
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": "call-0", "type": "function", "function": function}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]

    async def begin(self, task: Task, seed: int) -> str:
        """See :meth:`BrowserEnvBase.begin`."""
        asked = await self.browser.start_miniwob(
            MiniWobRecord.of(task).name, seed, self.episode_seconds, hide_query=self.hide_query
        )
        return f"Do this on the page: {asked}" if asked else "Do what the page asks for."

    def ends(self, look: BrowserLook) -> bool:
        """See :meth:`BrowserEnvBase.ends`."""
        return bool(look.task.get("done"))

    def takes_answer(self) -> bool:
        """See :meth:`BrowserEnvBase.takes_answer`."""
        return False

    async def verify(self) -> Outcome:
        """Return the page's own reward; 0 if the episode has not ended."""
        episode = await self.browser.task()
        raw = float(episode["raw"]) if episode["done"] else 0.0
        decayed = float(episode["reward"]) if episode["done"] else 0.0
        details = {
            "raw_reward": raw,
            "time_decayed_reward": decayed,
            "done": bool(episode["done"]),
            "reason": json.loads(json.dumps(episode["reason"])),
            "utterance": episode["utterance"],
        }
        score = decayed if self.time_decay else raw
        return Outcome(score=score, passed=raw > 0, details=details)
