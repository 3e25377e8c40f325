"""Anthropic's Messages: answers from chat form, whole and as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.server._json import dumps, loads
from trajgym.server.dialects._base import (
    ClientCall,
    Dialect,
    EventWriter,
    event,
    first_choice,
    signature_of,
)
from trajgym.server.dialects._messages import parse_messages

if TYPE_CHECKING:
    from trajgym.server._answer import Answer, Choice
    from trajgym.server.dialects._base import Resolve

__all__ = ["MessagesDialect"]

_STOP = {"tool_calls": "tool_use", "length": "max_tokens", "abort": "max_tokens"}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class MessagesDialect(Dialect):
    """``/messages``."""

    name = "messages"

    def parse(self, body: dict[str, Any], resolve: Resolve) -> ClientCall:
        """See :meth:`Dialect.parse`."""
        del resolve
        return parse_messages(body)

    def whole(self, call: ClientCall, answer: Answer, raw: dict[str, Any]) -> bytes:
        """See :meth:`Dialect.whole`."""
        del raw
        choice = first_choice(answer)
        return dumps(
            {
                **_opening(call),
                "content": [] if choice is None else _blocks(call, choice),
                "stop_reason": _stop_reason(choice),
                "usage": _usage(answer),
            }
        )

    def writer(self, call: ClientCall) -> EventWriter:
        """See :meth:`Dialect.writer`."""
        return _MessagesWriter(call)

    def error(self, status: int, message: str, kind: str) -> bytes:
        """See :meth:`Dialect.error`."""
        del kind
        return dumps(_error(status, message))


def _error(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _opening(call: ClientCall) -> dict[str, Any]:
    return {
        "id": call.name,
        "type": "message",
        "role": "assistant",
        "model": call.given.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _stop_reason(choice: Choice | None) -> str:
    return "end_turn" if choice is None else _STOP.get(str(choice.finish), "end_turn")


def _usage(answer: Answer) -> dict[str, int]:
    usage = answer.usage or {}
    return {
        "input_tokens": usage.get("prompt_tokens") or 0,
        "output_tokens": usage.get("completion_tokens") or 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _blocks(call: ClientCall, choice: Choice) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    message = choice.message
    if thought := message.get("reasoning_content"):
        signature = signature_of(call.name, 0)
        blocks.append({"type": "thinking", "thinking": thought, "signature": signature})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for one in message.get("tool_calls") or ():
        function = one["function"]
        given = _object(function["arguments"])
        blocks.append(
            {"type": "tool_use", "id": one["id"], "name": function["name"], "input": given}
        )
    return blocks


def _object(arguments: str) -> Any:
    """Return arguments as an object; anything else is wrapped in one."""
    try:
        value = loads(arguments or "{}")
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


class _MessagesWriter(EventWriter):
    def __init__(self, call: ClientCall) -> None:
        self._call = call
        self._begun = False
        self._index = -1
        self._open: tuple[str, int] | None = None
        self._thoughts = 0

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Return the events of a chunk."""
        out = [self._begin()]
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            delta = choice.get("delta") or {}
            if text := delta.get("reasoning_content") or delta.get("reasoning"):
                out.append(self._enter("thinking", 0))
                out.append(self._delta({"type": "thinking_delta", "thinking": text}))
            if text := delta.get("content"):
                out.append(self._enter("text", 0))
                out.append(self._delta({"type": "text_delta", "text": text}))
            for i, part in enumerate(delta.get("tool_calls") or ()):
                out.append(self._call_part(part, i))
        return b"".join(out)

    def close(self, answer: Answer) -> bytes:
        """Return the end of the last block, the stop reason and the end of the stream."""
        usage = _usage(answer)
        delta = {"stop_reason": _stop_reason(first_choice(answer)), "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": usage}
        return b"".join(
            [
                self._begin(),
                self._leave(),
                event("message_delta", end),
                event("message_stop", {"type": "message_stop"}),
            ]
        )

    def fail(self, status: int, message: str, kind: str) -> bytes:
        """Return an error event."""
        del kind
        return event("error", _error(status, message))

    def keep_alive(self) -> bytes:
        """Return a ping event."""
        return event("ping", {"type": "ping"})

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        start = {"type": "message_start", "message": _opening(self._call)}
        return event("message_start", start)

    def _call_part(self, part: dict[str, Any], position: int) -> bytes:
        index = part.get("index")
        function = part.get("function") or {}
        block: dict[str, Any] = {
            "type": "tool_use",
            "id": part.get("id"),
            "name": function.get("name"),
            "input": {},
        }
        out = [self._enter("tool_use", position if index is None else index, block)]
        if function.get("arguments"):
            delta = {"type": "input_json_delta", "partial_json": function["arguments"]}
            out.append(self._delta(delta))
        return b"".join(out)

    def _enter(self, kind: str, number: int, block: dict[str, Any] | None = None) -> bytes:
        if self._open == (kind, number):
            return b""
        out = [self._leave()]
        self._open = (kind, number)
        self._index += 1
        if block is None:
            block = {"type": kind, kind: ""}
            if kind == "thinking":
                block["signature"] = ""
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        out.append(event("content_block_start", start))
        return b"".join(out)

    def _leave(self) -> bytes:
        if self._open is None:
            return b""
        out = []
        if self._open[0] == "thinking":
            signature = signature_of(self._call.name, self._thoughts)
            self._thoughts += 1
            out.append(self._delta({"type": "signature_delta", "signature": signature}))
        self._open = None
        stop = {"type": "content_block_stop", "index": self._index}
        out.append(event("content_block_stop", stop))
        return b"".join(out)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        body = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event("content_block_delta", body)
