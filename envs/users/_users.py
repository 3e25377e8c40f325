"""Simulated users: scripted by the task, played by a model, or of a custom class."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import Field, ValidationError

from trajgym.envs import ChatModel
from trajgym.envs._tasks import problems
from trajgym.envs.users._simulated import UserBudget
from trajgym.trajectory import InvalidInput, Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.users._data import UserData
    from trajgym.trajectory import Message

__all__ = ["STOP", "ModelUser", "ScriptedUser", "User", "UserTurn", "open_user"]

STOP = "###STOP###"
"""The message with which a user ends the conversation."""

_PROMPT = """\
You play a customer who writes to a service agent. Your situation and what you want:

{instruction}

Rules:
- Write what the customer writes next, one short message, and nothing else.
- Give a detail only when it is asked for or needed. Don't invent details that are not given \
above; say that you don't know or don't have them.
- Don't repeat the text above word for word; use your own words.
- When everything that you want is done, or can't be done, write {stop} and nothing else."""


class UserTurn(NamedTuple):
    """One turn of a simulated user.

    Attributes:
        text: the message.
        policy: the policy that generated it, as ``kind:name``.
        prompt_tokens: number of prompt tokens of a model's call; None if unknown.
        completion_tokens: number of completion tokens; None if unknown.
        sampling: sampling parameters of a model's call.
    """

    text: str
    policy: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    sampling: Sampling | None = None


class User(Protocol):
    """The user of one conversation.

    The setting ``user`` selects a custom class as ``package.module:factory``; the factory is called
    with the task's :class:`UserData` and returns an object with this method. If the object has an
    attribute ``opening``, a list of messages, it is recorded as the user's prompt.
    """

    async def say(self, conversation: Sequence[Message]) -> UserTurn:
        """Return the user's next message.

        Args:
            conversation: the messages so far, the agent's as ``user`` and the simulated user's as
                ``assistant`` messages, without tool calls and their results. Empty at the
                beginning.

        Raises:
            EnvironmentFault: the user did not answer; the attempt ends unscored.
        """


class ScriptedUser:
    """A deterministic user that sends a task's ``lines``: for tests and demonstrations.

    After each message of the agent, it sends the first unused line whose ``when`` matches: a
    regular expression that is searched in that message, ignoring case. Lines without ``when``
    always match. When no unused line matches, it ends the conversation.
    """

    def __init__(self, data: UserData) -> None:
        self._lines = data.lines

    async def say(self, conversation: Sequence[Message]) -> UserTurn:
        """See :class:`User`."""
        left = list(self._lines)
        heard = ["", *(str(m["content"]) for m in conversation if m["role"] == "user")]
        text = STOP
        for message in heard:
            matching = [i for i, line in enumerate(left) if _matches(line.when, message)]
            text = left.pop(matching[0]).says if matching else STOP
        return UserTurn(text, "scripted:user")


class ModelUser(ChatModel):
    """A user played by a model behind an OpenAI-compatible endpoint; see :class:`ChatModel`.

    Its time does not count towards the agent's.

    Attributes:
        turns: maximum number of turns of the user in an attempt; None for no limit.
        tokens: maximum number of prompt and completion tokens of all its calls; None for no limit.
    """

    temperature: float = Field(default=0.7, ge=0)
    max_tokens: int = Field(default=400, ge=1)
    turns: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)

    def playing(self, data: UserData) -> User:
        """Return the user of one conversation."""
        return _Playing(self, _PROMPT.format(instruction=data.instruction, stop=STOP))

    @property
    def budget(self) -> UserBudget:
        """The user's limits in an attempt."""
        return UserBudget(turns=self.turns, tokens=self.tokens)


class _Playing:
    def __init__(self, model: ModelUser, prompt: str) -> None:
        self._model = model
        self.opening: list[Message] = [
            {"role": "system", "content": prompt},
            {"role": "user", "content": "(The agent is there: write your first message.)"},
        ]

    async def say(self, conversation: Sequence[Message]) -> UserTurn:
        """See :class:`User`."""
        model = self._model
        answer = await model.ask([*self.opening, *conversation], "user")
        used = answer.usage
        return UserTurn(
            answer.text,
            answer.policy,
            prompt_tokens=None if used is None else used.prompt_tokens,
            completion_tokens=None if used is None else used.completion_tokens,
            sampling=Sampling(
                temperature=model.temperature, max_tokens=model.max_tokens, seed=model.seed
            ),
        )


def open_user(setting: dict[str, Any] | str | None, data: UserData) -> tuple[User, UserBudget]:
    """Return the user that a setting selects, and its budget.

    Args:
        setting: None for the task's own lines; settings of :class:`ModelUser`; or
            ``package.module:factory``.
        data: the data of the task.

    Raises:
        InvalidInput: the settings are malformed, the factory can't be imported, or the task has no
            lines.
    """
    if isinstance(setting, dict):
        try:
            model = ModelUser.model_validate(setting)
        except ValidationError as error:
            raise InvalidInput(f"settings of the simulated user: {problems(error)}") from error
        return model.playing(data), model.budget
    if isinstance(setting, str):
        module, _, name = setting.partition(":")
        try:
            factory = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidInput(f"user {setting!r} can't be imported: {error}") from error
        made: User = factory(data)
        return made, UserBudget()
    if not data.lines:
        raise InvalidInput(
            "this task has no lines for a scripted user; set a model in the setting user: "
            '{"base_url": ..., "model": ...}'
        )
    return ScriptedUser(data), UserBudget()


def _matches(when: str, message: str) -> bool:
    return not when or re.search(when, message, re.IGNORECASE) is not None
