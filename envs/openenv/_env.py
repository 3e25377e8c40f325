"""The environment that plays an episode of an OpenEnv server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel

from trajgym.envs._env import Env
from trajgym.envs._errors import ToolError
from trajgym.envs._tools import InvalidArguments, Tool, ToolResult
from trajgym.envs.openenv._connection import Connection, Rejected
from trajgym.envs.openenv._description import describe, http_url
from trajgym.envs.openenv._observation import observed, tool_content
from trajgym.trajectory import InvalidInput, Message, Outcome, Task, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs._tools import Content
    from trajgym.envs.openenv._description import Description

__all__ = ["OpenEnvEnv"]

_ACT = "act"


class OpenEnvEnv(Env):
    """An environment that an OpenEnv server runs, over the server's HTTP and WebSocket API.

    If the server lists tools (MCP), these are the agent's tools, and an answer without a call ends
    the episode. Otherwise, the tool ``act`` takes the fields of the server's actions. Each attempt
    has its own session on the server; while all sessions are in use, :meth:`reset` waits.

    An episode starts with the seed and the fields of ``Task.data``. Rewards are step rewards, and
    their sum is the score. An attempt passes if the server ended the episode with a positive last
    reward. ``details`` of the outcome has the number of rewards, as 0.0 is also the score of an
    episode without one.

    Args:
        url: the server's URL, as OpenEnv's clients take it.
        text: the field of an action that takes the text of an answer without a tool call.
        fields: fields of observations that are shown; all of them by default.
        images: fields of observations that hold images, as base64 or ``data:`` URLs.
        score: ``sum`` of the rewards, or the ``last`` one, if the server's rewards are cumulative.

    Raises:
        UnknownEnv: no OpenEnv server answers at the URL.
        InvalidInput: actions have no field ``text``, or the server has tools.
    """

    def __init__(
        self,
        *,
        url: str = "",
        text: str | None = None,
        fields: Sequence[str] = (),
        images: Sequence[str] = (),
        score: Literal["sum", "last"] = "sum",
    ) -> None:
        if score not in {"sum", "last"}:
            raise InvalidInput(f"openenv: score is {score!r}; it is 'sum' or 'last'")
        self._url = http_url(url)
        self._about = describe(self._url)
        self._text, self._score = text, score
        self._fields, self._images = list(fields), list(images)
        known = self._about.action.get("properties", {})
        if text is not None and (self._about.tools or text not in known):
            there = "the server has tools" if self._about.tools else f"there are {sorted(known)}"
            raise InvalidInput(f"openenv: no field {text!r} of actions; {there}")
        self._connection = Connection(self._url)
        self._rewards: list[float] = []
        self._ended = False

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> type[Self]:
        """Return the class with the server's tools.

        Raises:
            UnknownEnv: no OpenEnv server answers at the URL.
        """
        if not config.get("url"):
            return cls
        url = http_url(str(config["url"]))
        made = _variants.get((cls, url))
        if made is None:
            names = {
                "__module__": cls.__module__,
                "__qualname__": cls.__qualname__,
                "__doc__": cls.__doc__,
                "added_tools": (*cls.added_tools, *_tools(describe(url))),
            }
            made = _variants[cls, url] = type(cls.__name__, (cls,), names)
        return made

    async def reset(self, task: Task, seed: int | None) -> ToolResult:
        """Start an episode with the seed and the task's data.

        Raises:
            EnvironmentFault: the server can't be reached, or it failed.
            InvalidInput: the server does not accept the task's data.
        """
        data = dict(task.data) if seed is None else {"seed": abs(seed), **task.data}
        try:
            answer = await self._connection.reset(data)
        except Rejected as error:
            raise InvalidInput(f"task {task.id!r}: {self._url}: {error}") from error
        content = "" if _empty(answer["observation"]) else self._content(answer["observation"])
        if isinstance(content, str):
            opening: Content = "\n\n".join(text for text in (task.prompt, content) if text)
        else:
            opening = [text for text in (task.prompt,) if text] + list(content)
        return self._result(answer, opening or self._about.about or self._about.name)

    async def act(self, **action: Any) -> ToolResult:
        """Execute an action of the server's schema."""
        answer = await self._step(action)
        return self._result(answer, self._content(answer["observation"]))

    async def call(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        """Call one of the server's tools."""
        action = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        answer = await self._step(action)
        # The reward counts even if the tool refused.
        result = self._result(answer, "")
        try:
            result.content = tool_content(answer["observation"], self._url)
        except ToolError as error:
            if result.reward is None and not result.done:
                raise
            result.content = f"Error: {error}"
        return result

    async def respond(self, message: Message) -> ToolResult:
        """Take an answer as an action if there is a field for it; with tools, end the episode."""
        if self._about.tools:
            return ToolResult(done=True)
        if self._text is not None:
            return await self.act(**{self._text: text_of(message)})
        return ToolResult(content=f"Call {_ACT} with your action.")

    def verify(self) -> Outcome:
        """Return the sum of the rewards, or the last one."""
        last = self._rewards[-1] if self._rewards else 0.0
        return Outcome(
            score=last if self._score == "last" else sum(self._rewards, 0.0),
            passed=self._ended and last > 0,
            details={"rewards": len(self._rewards)},
        )

    async def close(self) -> None:
        """Close the session on the server."""
        await self._connection.close()

    async def _step(self, action: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._connection.step(action)
        except Rejected as error:
            raise InvalidArguments(str(error)) from error

    def _content(self, observation: dict[str, Any]) -> Content:
        return observed(observation, self._fields, self._images, self._url)

    def _result(self, answer: dict[str, Any], content: Content) -> ToolResult:
        reward = answer.get("reward")
        if reward is not None:
            self._rewards.append(float(reward))
        self._ended = bool(answer.get("done"))
        return ToolResult(
            content=content,
            reward=None if reward is None else float(reward),
            done=self._ended,
        )


_variants: dict[tuple[type, str], Any] = {}


@dataclass(frozen=True, slots=True)
class _ServedTool(Tool):
    """A tool whose arguments are validated by the server."""

    def parse(self, arguments: str) -> dict[str, Any]:
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            raise InvalidArguments(f"invalid arguments for {self.name}: {error}") from error
        if not isinstance(given, dict):
            raise InvalidArguments(f"invalid arguments for {self.name}: expected an object")
        return given if self.function is OpenEnvEnv.act else {"tool": self.name, "arguments": given}


def _tools(about: Description) -> list[Tool]:
    if about.tools:
        return [
            _tool(
                OpenEnvEnv.call,
                str(one["name"]),
                str(one.get("description") or ""),
                one.get("inputSchema") or one.get("input_schema") or {"type": "object"},
            )
            for one in about.tools
        ]
    schema = {
        key: value for key, value in about.action.items() if key not in {"title", "description"}
    }
    schema["properties"] = {
        key: value for key, value in schema.get("properties", {}).items() if key != "metadata"
    }
    described = about.action.get("description") or "Execute an action."
    return [_tool(OpenEnvEnv.act, _ACT, str(described), schema)]


def _tool(function: Any, name: str, about: str, parameters: dict[str, Any]) -> Tool:
    return _ServedTool(
        name=name,
        function=function,
        arguments=BaseModel,
        schema={
            "type": "function",
            "function": {"name": name, "description": about, "parameters": parameters},
        },
        concurrent=False,
        parameters=("tool", "arguments"),
        is_async=True,
    )


def _empty(observation: dict[str, Any]) -> bool:
    return not any(value for key, value in observation.items() if key not in {"done", "reward"})
