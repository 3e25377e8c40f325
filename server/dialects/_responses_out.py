"""OpenAI's Responses: answers from chat form, whole and as events."""

from __future__ import annotations

import time
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
from trajgym.server.dialects._responses import parse_responses

if TYPE_CHECKING:
    from trajgym.server._answer import Answer
    from trajgym.server.dialects._base import Resolve

__all__ = ["ResponsesDialect"]

_ECHOED = (
    "instructions", "metadata", "previous_response_id", "reasoning", "temperature", "text",
    "tool_choice", "tools", "top_p", "truncation", "user", "max_output_tokens", "prompt_cache_key",
)  # fmt: skip


class ResponsesDialect(Dialect):
    """``/responses``."""

    name = "responses"

    def parse(self, body: dict[str, Any], resolve: Resolve) -> ClientCall:
        """See :meth:`Dialect.parse`."""
        return parse_responses(body, resolve)

    def whole(self, call: ClientCall, answer: Answer, raw: dict[str, Any]) -> bytes:
        """See :meth:`Dialect.whole`."""
        del raw
        return dumps(_complete(call, answer, _items(call, answer)))

    def writer(self, call: ClientCall) -> EventWriter:
        """See :meth:`Dialect.writer`."""
        return _ResponsesWriter(call)


def _response(call: ClientCall) -> dict[str, Any]:
    echoed = {name: call.given.get(name) for name in _ECHOED}
    return {
        **echoed,
        "id": call.name,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": call.given.get("model"),
        "output": [],
        "error": None,
        "incomplete_details": None,
        "metadata": call.given.get("metadata") or {},
        "parallel_tool_calls": call.given.get("parallel_tool_calls") is not False,
        "store": call.given.get("store") is not False,
        "tool_choice": call.given.get("tool_choice") or "auto",
        "tools": call.given.get("tools") or [],
        "text": call.given.get("text") or {"format": {"type": "text"}},
        "truncation": call.given.get("truncation") or "disabled",
        "usage": None,
    }


def _complete(call: ClientCall, answer: Answer, items: list[dict[str, Any]]) -> dict[str, Any]:
    body = _response(call)
    choice = first_choice(answer)
    cut = choice is not None and choice.finish in {"length", "abort"}
    body["status"] = "incomplete" if cut else "completed"
    if cut:
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    body["output"] = items
    body["usage"] = _usage(answer)
    return body


def _usage(answer: Answer) -> dict[str, Any]:
    usage = answer.usage or {}
    given, made = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    details = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens") or 0},
        "total_tokens": given + made,
    }


def _items(call: ClientCall, answer: Answer) -> list[dict[str, Any]]:
    choice = first_choice(answer)
    if choice is None:
        return []
    message = choice.message
    items: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        items.append(_reasoning(call, len(items), thought))
    if message["content"]:
        items.append(_said(call, len(items), message["content"]))
    for one in message.get("tool_calls") or ():
        function = one["function"]
        items.append(_called(call, len(items), one["id"], function["name"], function["arguments"]))
    return items


def _item_id(prefix: str, call: ClientCall, index: int) -> str:
    return f"{prefix}_{call.name.removeprefix('resp_')}_{index}"


def _reasoning(call: ClientCall, index: int, text: str) -> dict[str, Any]:
    item: dict[str, Any] = {
        "id": _item_id("rs", call, index),
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": "completed",
    }
    if "reasoning.encrypted_content" in (call.given.get("include") or ()):
        item["encrypted_content"] = signature_of(call.name, index)
    return item


def _said(call: ClientCall, index: int, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": _item_id("msg", call, index),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _called(
    call: ClientCall, index: int, identity: str, name: str, arguments: str
) -> dict[str, Any]:
    item = {
        "id": _item_id("fc", call, index),
        "type": "function_call",
        "status": "completed",
        "call_id": identity,
        "name": name,
    }
    if name in call.namespaces:
        item["namespace"], item["name"] = call.namespaces[name]
    if name in call.custom:
        return {**item, "type": "custom_tool_call", "input": _free_text(arguments)}
    return {**item, "arguments": arguments}


def _free_text(arguments: str) -> str:
    try:
        value = loads(arguments)
    except ValueError:
        return arguments
    return str(value["input"]) if isinstance(value, dict) and "input" in value else arguments


class _ResponsesWriter(EventWriter):
    """Items are streamed one after the other; each is complete before the next begins."""

    def __init__(self, call: ClientCall) -> None:
        self._call = call
        self._number = 0
        self._begun = False
        self._items: list[dict[str, Any]] = []
        self._open: tuple[str, int] | None = None
        self._text: list[str] = []
        self._named = ("", "")

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Return the events of a chunk."""
        out = [self._begin()]
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            delta = choice.get("delta") or {}
            if text := delta.get("reasoning_content") or delta.get("reasoning"):
                out += [self._enter("reasoning", 0), self._grow("response.reasoning_text", text)]
            if text := delta.get("content"):
                out += [self._enter("message", 0), self._grow("response.output_text", text)]
            for i, part in enumerate(delta.get("tool_calls") or ()):
                out.append(self._call_part(part, i))
        return b"".join(out)

    def close(self, answer: Answer) -> bytes:
        """Return the end of the last item, and the whole response."""
        out = [self._begin(), self._leave()]
        body = _complete(self._call, answer, self._items)
        kind = "response.incomplete" if body["status"] == "incomplete" else "response.completed"
        return b"".join([*out, self._event(kind, response=body)])

    def fail(self, status: int, message: str, kind: str) -> bytes:
        """Return a failed response."""
        del kind
        error = {"code": "server_error" if status >= 500 else "invalid_prompt", "message": message}
        body = {**_response(self._call), "status": "failed", "error": error}
        return self._begin() + self._event("response.failed", response=body)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event(kind, {"type": kind, "sequence_number": number, **fields})

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        body = _response(self._call)
        return self._event("response.created", response=body) + self._event(
            "response.in_progress", response=body
        )

    def _call_part(self, part: dict[str, Any], position: int) -> bytes:
        index = part.get("index")
        function = part.get("function") or {}
        name = function.get("name") or ""
        out = [
            self._enter(
                "call", position if index is None else index, named=(part.get("id") or "", name)
            )
        ]
        if function.get("arguments"):
            self._text.append(function["arguments"])
            if self._named[1] not in self._call.custom:
                out.append(
                    self._event(
                        "response.function_call_arguments.delta",
                        **self._where(),
                        delta=function["arguments"],
                    )
                )
        return b"".join(out)

    def _where(self) -> dict[str, Any]:
        prefix = {"reasoning": "rs", "message": "msg", "call": "fc"}[self._open[0]]  # type: ignore[index]
        index = len(self._items)
        return {"item_id": _item_id(prefix, self._call, index), "output_index": index}

    def _enter(self, kind: str, number: int, named: tuple[str, str] = ("", "")) -> bytes:
        if self._open == (kind, number):
            return b""
        out = [self._leave()]
        self._open, self._text, self._named = (kind, number), [], named
        index = len(self._items)
        item = {**self._item(""), "status": "in_progress"}
        if kind != "call":
            item["content"] = []
        added = self._event("response.output_item.added", output_index=index, item=item)
        out.append(added)
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            out.append(self._part("added", part))
        return b"".join(out)

    def _item(self, text: str) -> dict[str, Any]:
        assert self._open is not None
        index = len(self._items)
        if self._open[0] == "reasoning":
            return _reasoning(self._call, index, text)
        if self._open[0] == "message":
            return _said(self._call, index, text)
        return _called(self._call, index, *self._named, text)

    def _part(self, what: str, part: dict[str, Any]) -> bytes:
        return self._event(
            f"response.content_part.{what}", **self._where(), content_index=0, part=part
        )

    def _grow(self, kind: str, text: str) -> bytes:
        self._text.append(text)
        more: dict[str, Any] = {"logprobs": []} if kind == "response.output_text" else {}
        return self._event(f"{kind}.delta", **self._where(), content_index=0, delta=text, **more)

    def _leave(self) -> bytes:
        if self._open is None:
            return b""
        text = "".join(self._text)
        item, kind, out = self._item(text), self._open[0], []
        if kind == "message":
            fields = {**self._where(), "content_index": 0, "text": text, "logprobs": []}
            out.append(self._event("response.output_text.done", **fields))
            out.append(self._part("done", item["content"][0]))
        elif kind == "reasoning":
            fields = {**self._where(), "content_index": 0, "text": text}
            out.append(self._event("response.reasoning_text.done", **fields))
        elif item["type"] == "function_call":
            fields = {**self._where(), "name": item["name"], "arguments": text}
            out.append(self._event("response.function_call_arguments.done", **fields))
        else:
            out.append(
                self._event(
                    "response.custom_tool_call_input.done", **self._where(), input=item["input"]
                )
            )
        done = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None
        return b"".join([*out, done])
