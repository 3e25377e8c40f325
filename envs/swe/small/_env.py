"""The environment of small tasks: four tools with short descriptions and short results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, ToolResult, tool
from trajgym.envs.swe import _editing as editing
from trajgym.envs.swe._editor_env import SweEnv, relative
from trajgym.envs.swe.small._agent import small_agent
from trajgym.envs.swe.small._tasks import CHECK, small_tasks
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.trajectory import Message, Task

__all__ = ["SmallSweEnv"]


class SmallSweEnv(SweEnv):
    """SWE tasks for small models: ``trajgym.envs`` id ``swe-small``.

    The tools are ``bash``, ``view``, ``str_replace`` and ``submit``. On a turn that runs the
    package's check, the signals ``tests_passed`` and ``tests_failed`` count functions.
    """

    budgets: ClassVar[Budgets] = Budgets(turns=16, seconds=600.0, observation_bytes=4000)
    verify_seconds: ClassVar[float] = 300.0

    search = insert = create = undo = None  # type: ignore[assignment]  # tools that it lacks

    def __init__(self, *, output_bytes: int = 1500, **config: Any) -> None:
        super().__init__(output_bytes=output_bytes, **config)

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return small tasks.

        Args:
            source: ``train`` or ``test`` (held-out packages), optionally with the number of tasks
                and of bugs per task, as in ``train:500:3``; by default 100 tasks with 2 bugs.

        Raises:
            InvalidInput: the source has another form, or a number is out of range.
        """
        kind, *numbers = source.split(":")
        if kind not in {"train", "test"} or len(numbers) > 2 or not all(map(str.isdigit, numbers)):
            raise InvalidInput(f"small tasks {source!r}: give train or test, such as train:500:3")
        n, bugs = [*map(int, numbers), *(100, 2)[len(numbers) :]]
        return small_tasks(n, bugs=bugs, held_out=kind == "test")

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return the messages of :func:`small_agent`; odd samples contain mistakes."""
        return small_agent(task, sample, mistakes=0.5 * (sample % 2))

    async def reset(self, task: Task, seed: int | None) -> str:
        """Start a sandbox with the package and return the problem as a prompt."""
        await super().reset(task, seed)
        text = str(task.data["problem_statement"])
        return f"{text} Mend them and submit. Start with `{CHECK}`."

    @tool
    async def bash(self, command: str) -> ToolResult:  # type: ignore[override]
        """Run a command in the repository."""
        return await super().bash(command)

    @tool
    async def view(self, path: str) -> ToolResult:  # type: ignore[override]
        """Show a file."""
        near = self._trace.call("view", {"path": path})
        content = editing.encode(await self._read(path))
        shown = editing.shortened(content, self.output_bytes).rstrip("\n")
        return self._result(shown or "the file is empty", self._trace.look(relative(path)) | near)

    @tool
    async def str_replace(self, path: str, old: str, new: str) -> ToolResult:
        """Replace text that occurs once in a file."""
        return await super().str_replace(path, old, new)

    @tool
    async def submit(self) -> ToolResult:
        """Hand in the work."""
        return await super().submit()
