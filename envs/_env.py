"""The base class of environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from trajgym.envs._budgets import Budgets
from trajgym.envs._meter import Remaining
from trajgym.envs._stoppable import CANCEL_SECONDS
from trajgym.envs._tasks import TaskData, load_tasks
from trajgym.envs._threads import inline
from trajgym.envs._tools import Tool, ToolResult, is_tool
from trajgym.trajectory import InvalidInput, Message, Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from trajgym.envs._chat import ChatModel
    from trajgym.envs._others import OtherTurn
    from trajgym.envs.rubrics import Rubric
    from trajgym.trajectory import Task

_OTHERS = "_trajgym_others"
_SIGNALS = "_trajgym_signals"

__all__ = ["Env", "Prompt", "Response", "Verdict"]

Prompt: TypeAlias = "str | list[Message] | ToolResult"
"""The first user message (its text, or a result with text and images), or the whole opening
conversation."""

Response: TypeAlias = "str | ToolResult"
Verdict: TypeAlias = "float | bool | Outcome"


class Env:
    """An environment: opens a task, responds to the agent, and verifies the result.

    Subclass it, mark methods with :func:`tool`, and implement :meth:`reset` and :meth:`verify`.
    Every method may be plain or ``async``; plain ones run in a thread. One instance serves one
    attempt; a fork gets its own instance. :class:`ToolError` and ``ValueError`` in a tool are
    reported to the agent; any other exception ends the attempt without a score.

    Attributes:
        task_data: type of the tasks' data; tasks are checked against it when they are loaded.
        added_tools: tools that are not methods of the class; see :class:`Tool`.
        budgets: limits of an attempt; a session can override them.
        forkable: False declares that forks are impossible (:class:`Unforkable`).
        reset_seconds: deadline of :meth:`reset` and :meth:`restore`; missing it ends the attempt
            as ``failed:env``.
        verify_seconds: deadline of :meth:`verify`, separate from the agent's time.
        close_seconds: deadline of :meth:`close`.
        cancel_seconds: time in which an async method must end after its deadline cancelled it;
            otherwise it is abandoned, and the attempt ends as ``failed:env``.
        labels: run and session, set before :meth:`reset`; attach them to resources that can outlive
            the process.
        remaining: what is left of the budgets, set before :meth:`reset` and before each message is
            executed, for environments that show it to the agent.
        acting_on: the assistant message that is being executed, set before its tool calls.
        rubric: scores attempts instead of :meth:`verify`.
        judge: the model that is asked for the rubric's judged parts; set in ``__init__``, usually
            from the configuration, ``ChatModel.model_validate(judge)``. An environment whose rubric
            has such parts can't be built without it.
    """

    task_data: ClassVar[type[TaskData] | None] = None
    added_tools: ClassVar[Sequence[Tool]] = ()
    budgets: ClassVar[Budgets] = Budgets()
    forkable: ClassVar[bool] = True
    reset_seconds: ClassVar[float] = 300.0
    verify_seconds: ClassVar[float] = 900.0
    close_seconds: ClassVar[float] = 60.0
    cancel_seconds: ClassVar[float] = CANCEL_SECONDS
    labels: Mapping[str, str] = {}
    remaining: Remaining = Remaining()
    acting_on: Mapping[str, Any] = {}
    rubric: Rubric | None = None
    judge: ChatModel | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name, value in vars(cls).items():
            if name in vars(Env) and is_tool(value):
                raise InvalidInput(
                    f"{cls.__name__}.{name}: a tool would replace this method of Env: call the "
                    f'method otherwise, and mark it by @tool(name="{name}")'
                )

    def __init__(self, **config: Any) -> None:
        if config:
            raise InvalidInput(
                f"{type(self).__name__} takes no configuration; got {sorted(config)}"
            )

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Env]:  # noqa: ARG003
        """Return the class for this configuration, if a setting chooses the tools.

        It must accept the configuration, and depend on nothing else. By default it is this class.

        Raises:
            InvalidInput: a setting names a variant that does not exist.
        """
        return cls

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return the tasks that ``--tasks SOURCE`` means.

        By default whatever :func:`trajgym.envs.load_tasks` reads, checked by :attr:`task_data`.

        Raises:
            InvalidInput: no such source, or a task that is malformed.
        """
        return load_tasks(source, data=cls.task_data)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:  # noqa: ARG003
        """Return the messages of a scripted agent in sample ``sample`` of a task, one per turn.

        For demos and tests without a model. Samples should differ, and some should fail, so that
        groups have mixed outcomes.
        """
        raise InvalidInput(
            f"{cls.__name__} has no script for a scripted policy; use a model, or override "
            "script()",
        )

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        """Prepare what all sessions of a process share (images, a cache); called by the runner.

        It can also remove what an earlier, killed run left behind. An exception ends the run before
        its first session.

        Args:
            config: the spec's configuration.
            tasks: the tasks that are known so far; there may be more.
        """

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        """Release what :meth:`open_run` prepared. Called after the last session has closed."""

    @classmethod
    async def discard_snapshots(cls, config: Mapping[str, Any], snapshots: Sequence[str]) -> None:
        """Delete what belongs to snapshots; does nothing by default.

        Called when a session that took snapshots is left, after all of its environments have
        closed, within :attr:`close_seconds`. An exception is logged.

        Args:
            config: the spec's configuration.
            snapshots: what :meth:`snapshot` returned, once each; some may have been deleted before.
        """

    def reset(self, task: Task, seed: int | None) -> Prompt | Awaitable[Prompt]:
        """Open the task and return the first messages for the agent.

        Args:
            task: the problem instance.
            seed: seed of all random choices; equal seeds must give equal initial states.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement reset(task, seed)")

    @inline
    def respond(self, message: Message) -> Response | Awaitable[Response]:
        """Respond to a message without tool calls.

        Override it for environments that accept free text. By default such a message ends the
        episode.
        """
        del message
        return ToolResult(done=True)

    @inline
    def on_refusal(self, error: str) -> Response | Awaitable[Response]:
        """Respond to a call or message that could not be executed.

        Called when a tool or :meth:`respond` raised :class:`ToolError` or ``ValueError``, and for
        calls of unknown tools or with invalid arguments. Override it if the agent needs more than
        the reason, such as a screenshot.

        Args:
            error: the reason, for the agent.
        """
        return f"Error: {error}"

    def verify(self) -> Verdict | Awaitable[Verdict]:
        """Return the outcome: a score, a bool, or an :class:`Outcome`.

        Called once, after the last turn, also if a budget ended the attempt; not called if there
        is a :attr:`rubric`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement verify(), or have a rubric"
        )

    @inline
    def facts(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Return what a :attr:`rubric` has to know about the final state; JSON values.

        Called once, after the last turn, before the rubric. The facts are recorded with the
        outcome, so that the attempt can be scored again.
        """
        return {}

    def note_other(self, turn: OtherTurn) -> None:
        """Report a turn of another policy, such as a simulated user, for the session to record.

        To be called while :meth:`reset`, a tool or :meth:`respond` runs. The turn is kept beside
        the agent's; nothing trains on it.
        """
        vars(self).setdefault(_OTHERS, []).append(turn)

    def take_others(self) -> list[OtherTurn]:
        """Return the turns that were reported and not yet taken; called by the session."""
        found: list[OtherTurn] = vars(self).pop(_OTHERS, [])
        return found

    def note_signals(self, signals: Mapping[str, Any]) -> None:
        """Report signals about the opening, such as which memory it shows; JSON values.

        To be called while :meth:`reset` runs. They are recorded with the attempt's first turn.
        """
        vars(self).setdefault(_SIGNALS, {}).update(signals)

    def take_signals(self) -> dict[str, Any]:
        """Return the signals that were reported and not yet taken; called by the session."""
        found: dict[str, Any] = vars(self).pop(_SIGNALS, {})
        return found

    @inline
    def snapshot(self) -> str | Awaitable[str | None] | None:
        """Save the current state and return its id; None if snapshots are not supported."""
        return None

    def restore(self, task: Task, seed: int | None, snapshot: str) -> Awaitable[None] | None:
        """Open the task at a snapshot; called instead of :meth:`reset`."""
        raise NotImplementedError(f"{type(self).__name__} takes snapshots; implement restore()")

    @inline
    def close(self) -> Awaitable[None] | None:
        """Release all resources. Always called, also after a failed :meth:`reset`."""
