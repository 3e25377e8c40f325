"""Executing one assistant message in an environment."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.envs._errors import ToolError, Truncate
from trajgym.envs._results import as_result
from trajgym.envs._tools import Image, InvalidArguments, ToolResult, tools_of
from trajgym.envs.faults import Fault, contained, fault_of, message_of
from trajgym.trajectory import CallResult, Message, image_part, tool_calls_of
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trajgym.envs._env import Env
    from trajgym.envs._spawn import Spawn
    from trajgym.envs._threads import Worker
    from trajgym.envs._tools import Content, Tool
    from trajgym.trajectory import CallStatus

__all__ = ["Execution", "bound_text", "content_parts"]


_EXACT = 1 << 18
"""Number of characters whose bytes are counted, which takes less than a millisecond."""


def bound_text(text: str, limit: int | None) -> str:
    """Return text of at most about ``limit`` UTF-8 bytes: head, a note of what is omitted, tail.

    The time depends on the length of the result, so huge texts don't block the event loop.
    """
    if limit is None or len(text) <= limit // 4:
        return replace_surrogates(text)
    if len(text) <= max(limit, _EXACT) and len(replace_surrogates(text).encode()) <= limit:
        return replace_surrogates(text)
    head = replace_surrogates(text[: limit // 2]).encode()[: limit // 2].decode(errors="ignore")
    tail = replace_surrogates(text[len(text) - limit // 2 :]).encode()
    end = tail[len(tail) - limit // 2 :].decode(errors="ignore")
    if text.isascii() or len(text) <= _EXACT:
        size = len(text) if text.isascii() else len(replace_surrogates(text).encode())
        return f"{head}\n[... {size - limit // 2 * 2} bytes left out ...]\n{end}"
    return f"{head}\n[... {len(text) - len(head) - len(end)} characters left out ...]\n{end}"


def content_parts(
    content: Content, keep_image: Callable[[Image], str], text_limit: int | None
) -> str | list[dict[str, Any]]:
    """Return an environment's response as a message's content, with bounded texts.

    The limit applies to all texts together; texts after it was reached are omitted.
    """
    if isinstance(content, str):
        return bound_text(content, text_limit)
    parts: list[dict[str, Any]] = []
    left = text_limit
    for position, part in enumerate(content):
        if isinstance(part, Image):
            parts.append(image_part(keep_image(part)))
            continue
        if left is not None and left <= 0:
            note = f"[... the texts of {len(content) - position} parts left out ...]"
            parts.append({"type": "text", "text": note})
            parts += [image_part(keep_image(p)) for p in content[position:] if isinstance(p, Image)]
            break
        text = bound_text(part, left)
        parts.append({"type": "text", "text": text})
        left = None if left is None else left - len(text.encode())
    return parts


@dataclass(slots=True)
class Execution:
    """The execution of one message: filled in as calls end, complete after :meth:`settle`.

    Args:
        env: the environment.
        worker: runs its plain methods.
        message: the assistant message.
        keep_image: stores an image and returns its hash.
        text_limit: largest number of bytes of text per result.
        tools: what the agent may call; the environment's tools by default.
        plain_ends: a message without tool calls ends the run, and the environment does not respond
            to it.
    """

    env: Env
    worker: Worker
    message: Message
    keep_image: Callable[[Image], str]
    text_limit: int | None
    tools: Mapping[str, Tool] | None = None
    plain_ends: bool = False
    spawns: dict[int, Spawn] = field(default_factory=dict)
    """Sub-agents to run, by the position of the call that spawned them."""
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
        """True once no further call of this message may run."""
        return self.done or self.cut is not None or self.fault is not None

    async def run(self) -> None:
        """Execute the tool calls, or let the environment respond to a plain message."""
        calls = tool_calls_of(self.message)
        if not calls:
            if self.plain_ends:
                self.done = True
            else:
                await self._respond()
            return
        tools = tools_of(type(self.env)) if self.tools is None else self.tools
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
        """Build the observation; calls that began but have no result get ``unfinished``."""
        for index, call in enumerate(tool_calls_of(self.message)):
            name = call["function"]["name"]
            found = None if self.ended and index in self.spawns else self._results.get(index)
            status, result, seconds = found or (
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
            given = await self.worker.call(self.env.respond, self.message)
            result = as_result(given, "respond()")
        except Truncate as cut:
            self.cut = cut
            return
        except (ToolError, ValueError) as error:
            result = await self._refuse(error)
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
            with contained():  # the types of its parameters may have validators
                arguments = tool.parse(text)
            status = "error"
            given = await self.worker.call(tool.function, self.env, **arguments)
            result = as_result(given, f"tool {name!r}")
            status = "ok"
        except Truncate as cut:
            self.cut = self.cut or cut
            result = ToolResult(content=f"Error: {message_of(cut, self.text_limit)}")
        except (ToolError, ValueError) as error:
            if isinstance(error, InvalidArguments):  # a remote tool checks them itself
                status = "invalid"
            result = await self._refuse(error)
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            self.fault = self.fault or fault_of(error)
            result = ToolResult(content="Error: the environment failed.")
        if result.spawn is not None:
            self.spawns[index] = result.spawn
            self._running.discard(index)
        self._results[index] = (status, result, time.monotonic() - started)
        self._absorb(result)

    async def _refuse(self, refusal: Exception) -> ToolResult:
        text = message_of(refusal, self.text_limit)
        try:
            return as_result(await self.worker.call(self.env.on_refusal, text), "on_refusal()")
        except Truncate as cut:
            self.cut = self.cut or cut
        except Exception as error:  # noqa: BLE001 - boundary: environment code
            self.fault = self.fault or fault_of(error)
        return ToolResult(content=f"Error: {text}")

    def _absorb(self, result: ToolResult) -> None:
        if result.reward is not None:
            self.reward = (self.reward or 0.0) + result.reward
            if not math.isfinite(self.reward):
                cause = "the rewards of one turn add up to more than a float holds"
                self.fault = self.fault or Fault("env", cause, "")
                self.reward = None
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
