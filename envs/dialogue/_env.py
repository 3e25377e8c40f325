"""Dialogue environments: an agent with tools and a policy serves a simulated user.

After tau-bench (arXiv:2406.12045): the agent reads the policy, talks to a user who is another
policy, and changes data by tools. The outcome compares the data with the data after the reference
actions, and checks that the user was told what the task requires.
"""

from __future__ import annotations

import copy
import inspect
import json
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import (
    Budgets,
    Env,
    ToolError,
    ToolResult,
    load_tasks,
    tools_of,
)
from trajgym.envs.dialogue._tasks import DialogueRecord
from trajgym.envs.users import STOP, ModelUser, SimulatedUser, open_user
from trajgym.trajectory import InvalidInput, Outcome, text_of

if TYPE_CHECKING:
    from trajgym.trajectory import Message, Task

__all__ = ["DialogueEnv"]


class DialogueEnv(Env):
    """The base of a domain: subclass it, set :attr:`policy`, give :meth:`initial`, mark tools.

    Tools are plain (not ``async``) methods that read and change :attr:`data`, JSON values; they
    must depend on nothing else, so that the reference actions can be replayed. A plain message of
    the agent is sent to the user; the reply is returned as a user message. The user's turns are
    recorded as turns of the agent ``user``, which are never trained.

    Args:
        user: who plays the user: None for the task's own lines, settings of :class:`ModelUser`, or
            ``package.module:factory``.

    Attributes:
        policy: the rules that the agent must follow; its system message.
        data: the state of the world.
    """

    task_data = DialogueRecord
    budgets: ClassVar[Budgets] = Budgets(turns=40, seconds=900.0, observation_bytes=16_000)
    policy: ClassVar[str] = ""
    data: dict[str, Any]

    def __init__(self, *, user: dict[str, Any] | str | None = None) -> None:
        if isinstance(user, dict):
            ModelUser.model_validate(user)  # refused when a run begins, not in each session
        self._setting = user
        self._record: DialogueRecord | None = None
        self._user: SimulatedUser | None = None
        self._told: list[str] = []
        self.data = {}

    def initial(self) -> dict[str, Any]:
        """Return a new copy of the data at the start of a conversation."""
        raise NotImplementedError(f"{type(self).__name__} must implement initial()")

    @classmethod
    def builtin_tasks(cls) -> list[Task]:
        """Return the domain's own tasks, for ``--tasks builtin``; none by default."""
        return []

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return tasks, each checked: its reference actions must be possible.

        Args:
            source: ``builtin``, or a file or folder as :func:`trajgym.envs.load_tasks` reads them.

        Raises:
            InvalidInput: a task is malformed, or its actions name no tool, have wrong arguments or
                are refused by the tool.
        """
        tasks = (
            cls.builtin_tasks() if source == "builtin" else load_tasks(source, data=DialogueRecord)
        )
        for task in tasks:
            record = DialogueRecord.of(task)
            try:
                cls().expected(record)
            except (ToolError, ValueError, LookupError, TypeError) as error:
                raise InvalidInput(f"task {task.id!r}: actions: {error}") from error
        return tasks

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Message]:
        """Return a demonstration: ask, act, report; odd samples omit the last action."""
        record = DialogueRecord.of(task)
        actions = record.actions if sample % 2 == 0 else record.actions[:-1]
        told = ", ".join(record.outputs if sample % 2 == 0 else [])
        calls = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": a.name, "arguments": json.dumps(a.arguments)},
            }
            for number, a in enumerate(actions)
        ]
        doing: list[Message] = [{"role": "assistant", "content": "", "tool_calls": calls}]
        return [
            {"role": "assistant", "content": record.asks},
            {"role": "assistant", "content": "Shall I do that? Please confirm."},
            *(doing if calls else []),
            {"role": "assistant", "content": f"That is done. {told}".strip()},
        ]

    async def reset(self, task: Task, seed: int | None) -> list[Message]:
        """Return the policy as a system message, and the user's first words."""
        del seed
        self._begin(task)
        self.data = self.initial()
        return [
            {"role": "system", "content": self.policy},
            {"role": "user", "content": await self._answer(None)},
        ]

    async def respond(self, message: Message) -> ToolResult:
        """Send a message to the user; the conversation ends when the user stops."""
        text = text_of(message)
        self._told.append(text)
        answer = await self._answer(text)
        return ToolResult(content=answer.replace(STOP, "").strip(), done=STOP in answer)

    def verify(self) -> Outcome:
        """Compare the data with the data after the reference actions, and check the outputs."""
        assert self._record is not None
        right = self.expected(self._record) == self.data
        told = [_plain(text) for text in self._told]
        missing = [o for o in self._record.outputs if not any(_plain(o) in text for text in told)]
        passed = right and not missing
        details = {"data_right": right, "outputs_missing": missing}
        return Outcome(score=float(passed), passed=passed, details=details)

    def snapshot(self) -> str:
        """Return the state: data and conversation."""
        assert self._user is not None
        return json.dumps([self.data, self._user.snapshot(), self._told])

    def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        """Continue from a state."""
        del seed
        self._begin(task)
        assert self._user is not None
        self.data, user, self._told = json.loads(snapshot)
        self._user.restore(user)

    def expected(self, record: DialogueRecord) -> dict[str, Any]:
        """Return the data after a task's reference actions.

        Raises:
            LookupError, ToolError, TypeError, ValueError: an action is not possible.
        """
        world = type(self)(user=None)
        world.data = world.initial()
        tools = tools_of(type(world))
        for action in record.actions:
            if action.name not in tools:
                raise LookupError(f"there is no tool {action.name!r}; tools: {sorted(tools)}")
            tool = tools[action.name]
            arguments = tool.parse(json.dumps(action.arguments))
            done = tool.function(world, **arguments)
            if inspect.isawaitable(done):
                raise TypeError(f"the tool {action.name!r} must not be async")
        return copy.deepcopy(world.data)

    def _begin(self, task: Task) -> None:
        self._record = DialogueRecord.of(task)
        self._user = SimulatedUser(self, *open_user(self._setting, self._record))
        self._told = []

    async def _answer(self, text: str | None) -> str:
        assert self._user is not None
        return await self._user.answer(text)


def _plain(text: str) -> str:
    return text.lower().replace(",", "")
