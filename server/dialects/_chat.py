"""OpenAI's Chat Completions and Completions: bodies are passed through with edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server._json import dumps
from trajgym.server.dialects._base import ClientCall, Dialect, EventWriter, as_list, new_id

if TYPE_CHECKING:
    from trajgym.server._answer import Answer, Choice
    from trajgym.server.dialects._base import Resolve

__all__ = ["ChatDialect", "CompletionsDialect"]

_OURS = ("weight_versions", "kv_transfer_params", "sglext")
_IDS = ("prompt_token_ids", "token_ids")


class ChatDialect(Dialect):
    """``/chat/completions``."""

    name = "chat"

    def parse(self, body: dict[str, Any], resolve: Resolve) -> ClientCall:
        """See :meth:`Dialect.parse`."""
        del resolve
        messages = as_list(body.get("messages"), "messages")
        if set(map(type, messages)) != {dict}:
            raise Refused(400, "messages must be a non-empty list of messages")
        tools = body.get("tools")
        options = body.get("stream_options")
        return ClientCall(
            dialect=self.name,
            name=new_id("chatcmpl-"),
            body=body,
            messages=messages,
            tools=tools if isinstance(tools, list) else [],
            stream=bool(body.get("stream")),
            shows_ids=bool(body.get("return_token_ids")),
            shows_logprobs=bool(body.get("logprobs")),
            shows_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            extras=[body.get("chat_template_kwargs"), body.get("response_format")],
        )

    def whole(self, call: ClientCall, answer: Answer, raw: dict[str, Any]) -> bytes:
        """See :meth:`Dialect.whole`."""
        return dumps(_edited(call, raw or _assembled(answer)))

    def writer(self, call: ClientCall) -> EventWriter:
        """See :meth:`Dialect.writer`."""
        return _ChatWriter(call)


class CompletionsDialect(ChatDialect):
    """``/completions``: a prompt is treated as a conversation of one user message."""

    name = "completions"

    def parse(self, body: dict[str, Any], resolve: Resolve) -> ClientCall:
        """See :meth:`Dialect.parse`."""
        del resolve
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and all(isinstance(p, int) for p in prompt):
            prompt = " ".join(map(str, prompt))
        elif isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise Refused(400, "prompt must be one string or one list of token ids")
        options = body.get("stream_options")
        return ClientCall(
            dialect=self.name,
            name=new_id("cmpl-"),
            body=body,
            messages=[{"role": "user", "content": prompt}],
            path="/v1/completions",
            stream=bool(body.get("stream")),
            shows_ids=bool(body.get("return_token_ids")),
            shows_logprobs=body.get("logprobs") is not None,
            shows_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        )


def _edited(call: ClientCall, body: dict[str, Any]) -> dict[str, Any]:
    """Return an engine's body with our id, without fields that the client did not request."""
    kept = {k: v for k, v in body.items() if k not in _OURS}
    kept["id"] = call.name
    if not call.shows_ids:
        kept.pop("prompt_token_ids", None)
    choices = []
    for choice in body.get("choices") or ():
        shown = {k: v for k, v in choice.items() if k not in _OURS}
        if not call.shows_ids:
            for name in _IDS:
                shown.pop(name, None)
        if not call.shows_logprobs and shown.get("logprobs") is not None:
            shown["logprobs"] = None
        choices.append(shown)
    kept["choices"] = choices
    return kept


def _assembled(answer: Answer) -> dict[str, Any]:
    choices = [_choice(i, choice) for i, choice in sorted(answer.choices.items())]
    return {
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
        "usage": answer.usage,
        "prompt_token_ids": answer.prompt_ids,
    }


def _choice(index: int, choice: Choice) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [
        {"token": f"token_id:{i}", "logprob": value, "bytes": None, "top_logprobs": []}
        for i, value in zip(choice.ids, choice.logprobs, strict=False)
    ]
    return {
        "index": index,
        "message": choice.message,
        "finish_reason": choice.finish,
        "token_ids": choice.ids,
        "logprobs": {"content": entries} if entries else None,
    }


class _ChatWriter(EventWriter):
    def __init__(self, call: ClientCall) -> None:
        self._call = call
        self._held: list[bytes] = []

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """Return the chunk; chunks with a finish reason or usage are held until :meth:`close`."""
        choices = chunk.get("choices")
        if not choices and chunk.get("usage") is not None:
            if self._call.shows_usage:
                self._held.append(_data(_edited(self._call, chunk)))
            return b""
        if not choices and "sglext" in chunk:
            return b""  # ids only
        data = _data(_edited(self._call, chunk))
        if any(choice.get("finish_reason") for choice in choices or ()):
            self._held.append(data)
            return b""
        return data

    def close(self, answer: Answer) -> bytes:
        """Return the held chunks and the end of the stream."""
        del answer
        return b"".join([*self._held, b"data: [DONE]\n\n"])

    def fail(self, status: int, message: str, kind: str) -> bytes:
        """Return an error chunk in the form that engines send."""
        return _data({"error": {"message": message, "type": kind, "code": status}})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"
