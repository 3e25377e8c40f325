"""The environment that plays a rollout of a `verifiers` environment."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel

from trajgym.envs._env import Env
from trajgym.envs._errors import EnvironmentFault
from trajgym.envs._tools import Image, Tool, ToolResult
from trajgym.envs.verifiers._load import load, tasks_of_split
from trajgym.envs.verifiers._rollout import Rollout
from trajgym.trajectory import InvalidInput, Message, Outcome, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs._tools import Content
    from trajgym.trajectory import Task

__all__ = ["VerifiersEnv"]

_LIMITS = {
    "max_total_completion_tokens_reached": "completion_tokens",
    "max_turns_reached": "turns",
    "prompt_too_long": "context",
    "timeout_reached": "seconds",
}
"""Stop conditions of verifiers that are limits, and the names of such limits here."""


class VerifiersEnv(Env):
    """An environment of `verifiers`: single-turn, multi-turn, or with tools.

    The package's own loop runs in the background and asks the session for the model's responses, so
    that prompts, tool calls, stop conditions and cleanup are those of verifiers. The score is the
    weighted sum of the rubric's rewards; all of the rubric's values are in ``details``. The sampled
    tokens and log-probs stay in the session and are not visible to the rubric.

    ``--tasks train`` and ``--tasks eval`` are the environment's data sets. A task file works too,
    if each task's data is a row (``prompt``, ``answer``, ``info``).

    Args:
        environment: the name that ``verifiers.load_environment`` takes.
        args: its arguments.
        passing: the lowest score with which an attempt passes.

    Raises:
        InvalidInput: the environment can't be loaded, or its rubric compares rollouts.
        MissingExtra: verifiers is not installed.
    """

    forkable: ClassVar[bool] = True
    made: ClassVar[Any] = None
    """The environment of verifiers; set by :meth:`variant`."""
    name: ClassVar[str] = ""

    def __init__(
        self,
        *,
        environment: str = "",
        args: Mapping[str, Any] | None = None,
        passing: float = 1.0,
    ) -> None:
        if not environment:
            raise InvalidInput("verifiers: set environment to the name of an environment")
        self._made = load(environment, args or {})
        self._passing = passing
        self._rollout: Rollout | None = None
        self._given: Mapping[str, Any] | None = None
        self._answers: list[Message] = []
        self._position = 0
        self._state: Any = None

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Self]:
        """Return the class with the environment's tools.

        Raises:
            InvalidInput: the environment can't be loaded.
        """
        name = str(config.get("environment") or "")
        if not name:
            return cls
        made = load(name, config.get("args") or {})
        key = (cls, id(made))
        if key not in _variants:
            names = {
                "__module__": cls.__module__,
                "__qualname__": cls.__qualname__,
                "__doc__": cls.__doc__,
                "made": made,
                "name": name.rsplit("/", 1)[-1],
                "added_tools": (*cls.added_tools, *map(_tool, made.tool_defs or ())),
            }
            _variants[key] = type(cls.__name__, (cls,), names)
        found: type[Self] = _variants[key]
        return found

    @classmethod
    def load_tasks(cls, source: str) -> list[Task]:
        """Return the rows of a data set (``train`` or ``eval``), or the tasks of a file.

        Raises:
            InvalidInput: there is no such data set or file.
        """
        if source not in {"train", "eval"}:
            return super().load_tasks(source)
        if cls.made is None:
            raise InvalidInput("verifiers: set environment to the name of an environment")
        try:
            return tasks_of_split(cls.made, cls.name, source)
        except ValueError as error:  # verifiers has no such data set
            raise InvalidInput(f"verifiers environment {cls.name!r}: {error}") from error

    async def reset(self, task: Task, seed: int | None) -> list[Message]:
        """Start a rollout of the task's row.

        Raises:
            EnvironmentFault: the environment failed, or gives this task other tools.
        """
        del seed  # verifiers' environments have none
        row = {"example_id": 0, **task.data}
        if row.get("prompt") is None:
            row["prompt"] = [{"role": "user", "content": task.prompt or ""}]
        self._rollout = Rollout(self._made, row)
        opening = await self._rollout.start()
        if not opening:
            raise EnvironmentFault("env", "the verifiers environment ended before the first turn")
        known = {tool.name for tool in type(self).added_tools}
        if set(self._rollout.tools) != known:
            raise EnvironmentFault(
                "env",
                f"task {task.id!r} has the tools {sorted(self._rollout.tools)}, the environment "
                f"{sorted(known)}; tools that differ between tasks are not supported",
            )
        return opening

    async def respond(self, message: Message) -> ToolResult:
        """Give the answer to the environment, and return what it says to it."""
        added = await self._play(message)
        if wrong := [one["role"] for one in added if one["role"] not in {"user", "system"}]:
            raise EnvironmentFault("env", f"the verifiers environment added a {wrong[0]} message")
        return self._result(_joined(added))

    async def call(self, tool: str, arguments: str) -> ToolResult:
        """Return the environment's result of the next call of the message."""
        del tool, arguments  # the environment has the whole message
        return await self._call()

    async def on_refusal(self, error: str) -> ToolResult:
        """Let the environment answer a call of an unknown tool, as it does in verifiers."""
        del error
        return await self._call()

    async def verify(self) -> Outcome:
        """Apply the rubric.

        Raises:
            EnvironmentFault: the environment failed in the rollout.
            Exception: what a reward function raised.
        """
        assert self._rollout is not None
        await self._rollout.finish()
        state = await self._rollout.score()
        return Outcome(
            score=float(state["reward"]),
            passed=float(state["reward"]) >= self._passing,
            details={
                "metrics": {name: float(value) for name, value in (state["metrics"] or {}).items()},
                "stop_condition": state.get("stop_condition"),
            },
        )

    async def close(self) -> None:
        """End the rollout if it is still running."""
        if self._rollout is not None:
            await self._rollout.stop()

    async def _play(self, message: Message) -> list[Message]:
        assert self._rollout is not None
        return await self._rollout.give(message)

    async def _call(self) -> ToolResult:
        message = self.acting_on
        calls = tool_calls_of(dict(message))
        if message is not self._given or self._position == len(calls):
            # The first call of a message: the environment executes all of them.
            self._given, self._position = message, 0
            self._answers = await self._play(dict(message))
        position, self._position = self._position, self._position + 1
        answers = self._answers
        if not answers:
            return self._result("")
        if [one.get("tool_call_id") for one in answers] != [one["id"] for one in calls]:
            raise EnvironmentFault(
                "env",
                f"the verifiers environment answered {len(calls)} tool calls with messages of the "
                f"roles {[one['role'] for one in answers]}",
            )
        last = position == len(calls) - 1
        content = _content(answers[position])
        return self._result(content) if last else ToolResult(content=content)

    def _result(self, content: Content) -> ToolResult:
        assert self._rollout is not None
        if not self._rollout.ended:
            return ToolResult(content=content)
        stopped = str(self._rollout.state.get("stop_condition"))
        limit = _LIMITS.get(stopped, "")
        if stopped == "max_turns_reached" and self._made.max_turns == 1:
            limit = ""  # a single turn is all that there is
        return ToolResult(content=content, done=not limit, truncated=limit)


_variants: dict[tuple[type, int], Any] = {}


@dataclass(frozen=True, slots=True)
class _VerifiersTool(Tool):
    """A tool whose arguments the environment reads from the message."""

    def parse(self, arguments: str) -> dict[str, Any]:
        return {"tool": self.name, "arguments": arguments}


def _tool(given: Any) -> Tool:
    return _VerifiersTool(
        name=given.name,
        function=VerifiersEnv.call,
        arguments=BaseModel,
        schema={
            "type": "function",
            "function": {
                "name": given.name,
                "description": given.description,
                "parameters": given.parameters,
            },
        },
        concurrent=False,
        parameters=("tool", "arguments"),
        is_async=True,
    )


def _joined(messages: Sequence[Message]) -> Content:
    """Return the contents of messages as one."""
    parts: list[str | Image] = []
    for message in messages:
        content = _content(message)
        parts += [content] if isinstance(content, str) else content
    if all(isinstance(part, str) for part in parts):
        return "\n\n".join(part for part in parts if isinstance(part, str))
    return parts


def _content(message: Message) -> Content:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return [_part(part) for part in content or ()]


def _part(part: Any) -> str | Image:
    if part.get("type") == "text":
        return str(part.get("text"))
    url = str((part.get("image_url") or {}).get("url", ""))
    head, _, encoded = url.partition(",")
    if not head.startswith("data:image/"):
        raise EnvironmentFault("env", f"a part of type {part.get('type')!r} can't be shown")
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise EnvironmentFault("env", "an image is not in base64") from error
    return Image(data, head.removeprefix("data:").partition(";")[0])
