"""A policy that follows a script: text turns, no model."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from trajgym.envs import Reply
from trajgym.rollout._policy import Policy, PolicyGarbage, PolicyRequest
from trajgym.trajectory import InvalidInput, check_message

if TYPE_CHECKING:
    from trajgym.trajectory import Message

__all__ = ["Answer", "ScriptedPolicy", "call", "say"]

Answer: TypeAlias = "str | Message | Sequence[Message] | Reply"
"""Text, an assistant message, several of :func:`call`'s messages to be made one, or a reply."""
_Script: TypeAlias = "Generator[Answer, Sequence[Message], None]"
_AsyncScript: TypeAlias = "AsyncGenerator[Answer, Sequence[Message]]"

_MOST_RUNNING = 1024
"""Sessions whose generators are kept; one that was dropped starts again when it is asked."""


def call(name: str, /, **arguments: Any) -> Message:
    """Return an assistant message that calls one tool; JSON values as arguments.

    Several of them in a list make one message with several calls: see :func:`say`. The ids are
    given when the turn is made.
    """
    return say("", (name, arguments))


def say(text: str, /, *calls: tuple[str, Mapping[str, Any] | str] | Message) -> Message:
    """Return an assistant message with text and tool calls.

    Args:
        text: its content.
        calls: ``(name, arguments)``, where arguments that are a string go as they are (malformed
            JSON, for tests), or messages that :func:`call` made.

    Raises:
        InvalidInput: arguments that are not JSON values.
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
    """A session's generator, and what it has seen."""

    script: _Script | _AsyncScript
    seen: list[Message]


class ScriptedPolicy(Policy):
    """Says what a script says. Its turns are text turns: there are no ids to train on.

    Args:
        script: one of

            - a list with one answer per turn. The turn is the number of assistant messages in the
              request, so that forked and resumed sessions go on at the right place;
            - a function from :class:`PolicyRequest` to an answer, plain or async;
            - a generator function, plain or async, called once per session with the first request:
              it yields answers, and each ``yield`` returns the messages so far. In a forked or
              resumed session it starts again and is shown the turns that came before; its answers
              to those are dropped.
        name: recorded as ``scripted:<name>``.
        last: what a list or generator that has run out says; ``PolicyGarbage`` if None.
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
        """Return a policy that says the same in every turn."""
        return cls((), name=name, last=answer)

    async def sample(self, request: PolicyRequest) -> Reply:
        """See :meth:`Policy.sample`.

        Raises:
            PolicyGarbage: the script has run out, or gave nothing that is a message.
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
    """Return True if one turn, and nothing else, lies between what was seen and the messages."""
    n = len(seen)
    new = [m["role"] for m in messages[n:]]
    return messages[:n] == seen and new[:1] == ["assistant"] and "assistant" not in new[1:]


def _turn_starts(messages: list[Message]) -> list[int]:
    """Return how many messages each turn saw, the one to come included."""
    spoken = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    return [*spoken, len(messages)]


async def _send(script: _Script | _AsyncScript, messages: list[Message] | None) -> Any:
    if isinstance(script, AsyncGenerator):
        return await script.asend(messages)  # type: ignore[arg-type]
    try:
        return script.send(messages)  # type: ignore[arg-type]
    except StopIteration as stop:
        # A StopIteration can't leave a coroutine.
        raise StopAsyncIteration from stop


async def _finish(script: _Script | _AsyncScript | None) -> None:
    if isinstance(script, AsyncGenerator):
        await script.aclose()
    elif script is not None:
        script.close()
