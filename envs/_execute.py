"""Carrying out one assistant message in an environment."""

from __future__ import annotations

import asyncio
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs._errors import ToolError, Truncate
from trajgym.envs._tools import Image, ToolResult, tools_of
from trajgym.trajectory import (
    CallResult,
    Message,
    TrajgymError,
    image_part,
    replace_surrogates,
    tool_calls_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs._env import Env
    from trajgym.envs._threads import Worker
    from trajgym.envs._tools import Content, Tool
    from trajgym.trajectory import CallStatus

__all__ = ["Execution", "Fault", "bound_text", "content_parts", "fault_of"]


class Fault(NamedTuple):
    """Why an attempt ends ``failed:<part>``."""

    part: str
    cause: str
    error: str


def fault_of(error: BaseException, part: str = "env") -> Fault:
    """Return where an exception belongs: sandbox, a part the environment named, or ``part``."""
    # Errors of ours that know their part carry it: this module imports no sandbox, no policy.
    own = getattr(error, "part", None) if isinstance(error, TrajgymError) else None
    cause = str(error) or type(error).__name__
    if own is None:
        cause = f"{type(error).__name__}: {cause}"
    part = own or part
    return Fault(part, replace_surrogates(cause), "".join(traceback.format_exception(error)))


def bound_text(text: str, limit: int | None) -> str:
    """Return text of at most about ``limit`` UTF-8 bytes: head, a mark, tail."""
    text = replace_surrogates(text)
    if limit is None or len(text) <= limit // 4:
        return text
    data = text.encode()
    if len(data) <= limit:
        return text
    head, tail = data[: limit // 2], data[len(data) - limit // 2 :]
    left_out = len(data) - len(head) - len(tail)
    mark = f"\n[... {left_out} bytes left out ...]\n"
    return head.decode(errors="ignore") + mark + tail.decode(errors="ignore")


def content_parts(
    content: Content, keep_image: Callable[[Image], str], text_limit: int | None
) -> str | list[dict[str, Any]]:
    """Return what an environment answered as a message's content, texts bounded, images kept."""
    if isinstance(content, str):
        return bound_text(content, text_limit)
    return [
        image_part(keep_image(part))
        if isinstance(part, Image)
        else {"type": "text", "text": bound_text(part, text_limit)}
        for part in content
    ]


@dataclass(slots=True)
class Execution:
    """One message being carried out: filled in as calls end, complete after :meth:`settle`.

    Args:
        env: the environment.
        worker: where its plain methods run.
        message: the assistant message.
        keep_image: stores an image and returns its hash.
        text_limit: bytes of text per result.
    """

    env: Env
    worker: Worker
    message: Message
    keep_image: Callable[[Image], str]
    text_limit: int | None
    observation: list[Message] = field(default_factory=list)
    calls: list[CallResult] = field(default_factory=list)
    reward: float | None = None
    done: bool = False
    signals: dict[str, Any] = field(default_factory=dict)
    cut: Truncate | None = None
    fault: Fault | None = None
    _results: dict[int, tuple[CallStatus, ToolResult, float]] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """True once nothing more of this message may run."""
        return self.done or self.cut is not None or self.fault is not None

    async def run(self) -> None:
        """Carry out the tool calls, or let the environment respond to a plain message."""
        calls = tool_calls_of(self.message)
        if not calls:
            await self._respond()
            return
        tools = tools_of(type(self.env))
        index = 0
        while index < len(calls) and not self.ended:
            batch = [index]
            if _concurrent(tools, calls[index]):
                while index + 1 < len(calls) and _concurrent(tools, calls[index + 1]):
                    index += 1
                    batch.append(index)
            if len(batch) == 1:
                await self._call(index, calls[index], tools)
            else:
                async with asyncio.TaskGroup() as group:
                    for position in batch:
                        group.create_task(self._call(position, calls[position], tools))
            index += 1

    def settle(self, unfinished: CallStatus = "not_executed") -> None:
        """Write the observation; calls without a result get ``unfinished`` if they had begun."""
        for index, call in enumerate(tool_calls_of(self.message)):
            name = call["function"]["name"]
            status, result, seconds = self._results.get(index) or (
                unfinished if index in self._running else "not_executed",
                ToolResult(content=_unfinished(index in self._running, unfinished, self)),
                0.0,
            )
            self.calls.append(
                CallResult(
                    call_id=call["id"],
                    name=name,
                    status=status,
                    reward=result.reward,
                    seconds=seconds,
                ),
            )
            self.observation.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": self._content(result.content),
                },
            )

    async def _respond(self) -> None:
        try:
            result = _as_result(await self.worker.call(self.env.respond, self.message))
        except Truncate as cut:
            self.cut = cut
            return
        except (ToolError, ValueError) as error:
            result = ToolResult(content=f"Error: {error}")
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            self.fault = fault_of(error)
            return
        self._absorb(result)
        content = self._content(result.content)
        if content:
            self.observation.append({"role": "user", "content": content})

    async def _call(self, index: int, call: dict[str, Any], tools: Any) -> None:
        started = time.monotonic()
        status: CallStatus = "ok"
        result = ToolResult()
        self._running.add(index)
        try:
            name, text = call["function"]["name"], call["function"]["arguments"]
            tool: Tool | None = tools.get(name)
            if tool is None:
                status = "invalid"
                known = ", ".join(tools) or "none"
                raise ToolError(f"unknown tool {name!r}; available: {known}")
            status = "invalid"
            arguments = tool.parse(text)
            status = "error"
            if tool.is_async:
                given = await tool.function(self.env, **arguments)
            else:
                given = await self.worker.call(tool.function, self.env, **arguments)
            result = _as_result(given)
            status = "ok"
        except Truncate as cut:
            self.cut = self.cut or cut
            result = ToolResult(content=f"Error: {cut}")
        except (ToolError, ValueError) as error:
            result = ToolResult(content=f"Error: {error}")
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            self.fault = self.fault or fault_of(error)
            result = ToolResult(content="Error: the environment failed.")
        self._results[index] = (status, result, time.monotonic() - started)
        self._absorb(result)

    def _absorb(self, result: ToolResult) -> None:
        if result.reward is not None:
            self.reward = (self.reward or 0.0) + result.reward
        self.done = self.done or result.done
        if result.truncated:
            cause = f"the environment's limit {result.truncated!r} was reached"
            self.cut = self.cut or Truncate(result.truncated, cause)
        self.signals.update(result.signals)

    def _content(self, content: Content) -> str | list[dict[str, Any]]:
        return content_parts(content, self.keep_image, self.text_limit)


def _concurrent(tools: Any, call: dict[str, Any]) -> bool:
    tool: Tool | None = tools.get(call["function"]["name"])
    return tool is not None and tool.concurrent


def _unfinished(begun: bool, status: CallStatus, execution: Execution) -> str:
    if begun and status == "timeout":
        return "Error: the time ran out; the call was stopped."
    if execution.done:
        return "Not executed: the episode has ended."
    return "Not executed: the turn was cut before this call."


def _as_result(value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(content=value)
    raise TypeError(
        f"a tool or respond() returned {type(value).__name__}; return text or ToolResult",
    )
