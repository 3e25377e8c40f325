"""The class that every environment extends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from trajgym.envs._budgets import Budgets
from trajgym.envs._meter import Remaining
from trajgym.envs._tasks import load_tasks
from trajgym.envs._threads import inline
from trajgym.envs._tools import ToolResult
from trajgym.trajectory import InvalidInput, Message, Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from trajgym.trajectory import Task

__all__ = ["Env", "Prompt", "Response", "Verdict"]

Prompt: TypeAlias = "str | list[Message]"
"""The first user message, or the whole opening conversation."""

Response: TypeAlias = "str | ToolResult"
Verdict: TypeAlias = "float | bool | Outcome"


class Env:
    """An environment: opens a task, answers the agent, verifies the result.

    Subclass it, mark methods with :func:`tool`, and implement :meth:`reset` and :meth:`verify`.
    Every method may be plain or ``async``; plain ones run in a thread. One instance serves one
    attempt: a fork gets an instance of its own. Exceptions: see ``trajgym.envs`` errors; what is
    not the agent's doing ends the attempt unscored.

    Attributes:
        budgets: limits of an attempt; a session can override them.
        forkable: False declares that forks are impossible (:class:`Unforkable`).
        reset_seconds: deadline of :meth:`reset` and :meth:`restore`; missing it is ``failed:env``.
        verify_seconds: deadline of :meth:`verify`, apart from the agent's time.
        close_seconds: deadline of :meth:`close`.
        labels: run and session, set before :meth:`reset`; put them on what outlives a process.
        remaining: what the budgets leave, set before :meth:`reset` and for every message that is
            carried out: what an environment can tell the agent.
    """

    budgets: ClassVar[Budgets] = Budgets()
    forkable: ClassVar[bool] = True
    reset_seconds: ClassVar[float] = 300.0
    verify_seconds: ClassVar[float] = 900.0
    close_seconds: ClassVar[float] = 60.0
    labels: Mapping[str, str] = {}
    remaining: Remaining = Remaining()

    def __init__(self, **config: Any) -> None:
        if config:
            raise InvalidInput(
                f"{type(self).__name__} takes no configuration; got {sorted(config)}"
            )

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return the tasks that ``--tasks SOURCE`` means; by default a file of our own form."""
        return load_tasks(source)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:  # noqa: ARG003
        """Return what a scripted agent says in sample ``sample`` of a task, turn by turn.

        For demos and tests without a model. Let samples differ, and be wrong on purpose now and
        then, so that groups have mixed outcomes.
        """
        raise InvalidInput(
            f"{cls.__name__} has no script for a scripted policy; use a model (--base-url and "
            "--model, or --local), or override script()",
        )

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """Prepare what all sessions of a process share (images, a cache); called by the runner.

        Also the place to remove what an earlier, killed run left behind. An exception ends the
        run before its first session.

        Args:
            config: the spec's configuration.
            tasks: the tasks that are known already; more may come.
        """

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Free what :meth:`open_run` prepared. Called after the last session has closed."""

    def reset(self, task: Task, seed: int | None) -> Prompt | Awaitable[Prompt]:
        """Open the task and return what the agent reads first.

        Args:
            task: the problem instance.
            seed: for environments with chance; equal seeds must give equal worlds.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement reset(task, seed)")

    @inline
    def respond(self, message: Message) -> Response | Awaitable[Response]:
        """Answer a message without tool calls.

        Override it for environments that take free text. By default such a message is the agent's
        last word: the episode ends.
        """
        del message
        return ToolResult(done=True)

    def verify(self) -> Verdict | Awaitable[Verdict]:
        """Return the outcome: a score, a bool, or an :class:`Outcome`.

        Called once, after the last turn, also when a budget cut the attempt.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement verify()")

    @inline
    def snapshot(self) -> str | Awaitable[str | None] | None:
        """Keep the state of this moment and return its id; None if snapshots are not supported."""
        return None

    def restore(self, task: Task, seed: int | None, snapshot: str) -> Awaitable[None] | None:
        """Open the task at a snapshot instead of :meth:`reset`."""
        raise NotImplementedError(f"{type(self).__name__} takes snapshots: it must restore them")

    @inline
    def close(self) -> Awaitable[None] | None:
        """Free everything. Always called, also after a failed :meth:`reset`."""
