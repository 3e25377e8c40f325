"""A policy that follows a script, without a model."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from trajgym.envs import Reply
from trajgym.rollout._policy import Policy, PolicyGarbage, PolicyRequest
from trajgym.trajectory import InvalidInput, check_message

if TYPE_CHECKING:
    from trajgym.trajectory import Message

__all__ = ["Answer", "ScriptedPolicy", "call", "say"]

Answer: TypeAlias = "str | Message | Sequence[Message] | Reply"
"""Text, an assistant message, several :func:`call` messages to be merged, or a reply."""
_Script: TypeAlias = "Generator[Answer, Sequence[Message], None]"
_AsyncScript: TypeAlias = "AsyncGenerator[Answer, Sequence[Message]]"

_MOST_RUNNING = 1024
"""Number of sessions whose generators are kept; an evicted one starts again on its next call."""


def call(name: str, /, **arguments: Any) -> Message:
    """Return an assistant message that calls one tool, with JSON values as arguments.

    A list of them stands for one message with several calls, see :func:`say`. Call ids are assigned
    when the turn is made.
    """
    return say("", (name, arguments))


def say(text: str, /, *calls: tuple[str, Mapping[str, Any] | str] | Message) -> Message:
    """Return an assistant message with text and tool calls.

    Args:
        text: the content.
        calls: ``(name, arguments)``, or messages that :func:`call` returned. Arguments that are a
            string are not encoded (for malformed JSON in tests).

    Raises:
        InvalidInput: arguments are not JSON values.
    """
    found: list[dict[str, Any]] = []
    for item in calls:
        if isinstance(item, dict):
            found.extend(item.get("tool_calls") or [])
        else:
            found.append({"name": item[0], "arguments": _json(item[1])})
    message: Message = {"role": "assistant", "content": text}
    if found:
        message["tool_calls"] = [_numbered(c.get("function", c), i) for i, c in enumerate(found)]
    return message


def _json(arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(dict(arguments), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"call: arguments must be JSON values: {error}") from error


def _numbered(function: Mapping[str, Any], index: int, prefix: str = "call") -> dict[str, Any]:
    return {
        "id": f"{prefix}_{index}",
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


class _Running(NamedTuple):
    """A session's generator, and the messages that it has received."""

    script: _Script | _AsyncScript
    seen: list[Message]


class ScriptedPolicy(Policy):
    """Gives the answers of a script. Its turns are text turns, without ids to train on.

    Args:
        script: one of

            - a list with one answer per turn. The turn is the number of assistant messages in the
              request, so that forked and resumed sessions continue at the right answer;
            - a function from :class:`PolicyRequest` to an answer, plain or async;
            - a generator function, plain or async, called once per session with the first request:
              it yields answers, and each ``yield`` returns the messages so far (``yield from`` a
              list gives its answers, and returns None). In a forked or resumed session it is
              started again and receives the earlier turns; its answers to them are dropped.
        name: recorded as ``scripted:<name>``.
        last: the answer once a list or generator is exhausted; None raises ``PolicyGarbage``.
    """

    def __init__(
        self,
        script: Sequence[Answer] | Callable[[PolicyRequest], Any],
        *,
        name: str = "script",
        last: Answer | None = None,
    ) -> None:
        if isinstance(script, (str, bytes, Mapping)):
            raise InvalidInput("script: one answer; put it in a list, one item per turn")
        self.name = f"scripted:{name}"
        self._script = script
        self._last = last
        self._running: OrderedDict[str, _Running] = OrderedDict()

    @classmethod
    def always(cls, answer: Answer, *, name: str = "always") -> Self:
        """Return a policy that gives the same answer in every turn."""
        return cls((), name=name, last=answer)

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`.

        Raises:
            PolicyGarbage: the script is exhausted, or its answer is not a message.
        """
        turn = sum(m["role"] == "assistant" for m in request.messages)
        answer = await self._answer(request, turn)
        if answer is None:
            answer = self._last
        if answer is None:
            raise PolicyGarbage(
                f"{self.name}: the script has nothing for turn {turn} (from 0) of session "
                f"{request.session!r}; make it longer or pass last=",
            )
        return self._reply(answer, turn)

    async def close(self) -> None:
        """Close every generator."""
        while self._running:
            await _finish(self._running.popitem()[1].script)

    async def _answer(self, request: PolicyRequest, turn: int) -> Any:
        script = self._script
        if not callable(script):
            return script[turn] if turn < len(script) else None
        if inspect.isgeneratorfunction(script) or inspect.isasyncgenfunction(script):
            return await self._next(script, request)
        answer = script(request)
        return await answer if inspect.isawaitable(answer) else answer

    async def _next(self, script: Callable[[PolicyRequest], Any], request: PolicyRequest) -> Any:
        messages = list(request.messages)
        running = self._running.pop(request.session, None)
        try:
            if running is not None and _follows(messages, running.seen):
                generator = running.script
                answer = await _send(generator, messages)
            else:
                await _finish(running.script if running else None)
                generator = script(request)
                answer = await _send(generator, None)
                for end in _turn_starts(messages)[1:]:
                    answer = await _send(generator, messages[:end])
        except StopAsyncIteration:
            return None
        self._running[request.session] = _Running(generator, messages)
        if len(self._running) > _MOST_RUNNING:
            await _finish(self._running.popitem(last=False)[1].script)
        return answer

    def _reply(self, answer: Any, turn: int) -> Reply:
        if isinstance(answer, Reply):
            return dataclasses.replace(answer, policy=answer.policy or self.name)
        message = self._message(answer, turn)
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return Reply(message=message, finish=finish, policy=self.name)

    def _message(self, answer: Any, turn: int) -> Message:
        if isinstance(answer, str):
            return {"role": "assistant", "content": answer}
        if isinstance(answer, (list, tuple)):
            text = "\n".join(str(m["content"]) for m in answer if m.get("content"))
            answer = say(text, *answer)
        try:
            message = dict(check_message(answer, self.name, role="assistant"))
        except InvalidInput as error:
            raise PolicyGarbage(str(error)) from error
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                _numbered(c["function"], i, f"call_{turn}") for i, c in enumerate(calls)
            ]
        return message


def _follows(messages: list[Message], seen: list[Message]) -> bool:
    """Return True if the messages are those seen before plus exactly one turn."""
    n = len(seen)
    new = [m["role"] for m in messages[n:]]
    return messages[:n] == seen and new[:1] == ["assistant"] and "assistant" not in new[1:]


def _turn_starts(messages: list[Message]) -> list[int]:
    """Return how many messages each turn was given, including the next one."""
    spoken = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    return [*spoken, len(messages)]


async def _send(script: _Script | _AsyncScript, messages: list[Message] | None) -> Any:
    if isinstance(script, AsyncGenerator):
        return await script.asend(messages)  # type: ignore[arg-type]
    if not _receives(script):
        messages = None
    try:
        return script.send(messages)  # type: ignore[arg-type]
    except StopIteration as stop:
        # StopIteration can't be raised out of a coroutine.
        raise StopAsyncIteration from stop


def _receives(script: _Script) -> bool:
    """Return False if the generator is at ``yield from`` an iterator without ``send``."""
    inner: object = script
    while isinstance(inner, GeneratorType) and inner.gi_yieldfrom is not None:
        inner = inner.gi_yieldfrom
    return hasattr(inner, "send")


async def _finish(script: _Script | _AsyncScript | None) -> None:
    if isinstance(script, AsyncGenerator):
        await script.aclose()
    elif script is not None:
        script.close()
