"""Parsing and writing tool calls in a model's text, in three dialects.

=========  ==========================================================================
hermes     ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once per call
mistral    ``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or
           ``[TOOL_CALLS]name[ARGS]{...}`` once per call
llama      the whole answer is ``{"name": ..., "parameters": {...}}``, several split by ``;``
=========  ==========================================================================
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trajgym.trajectory import Message

__all__ = [
    "MALFORMED",
    "CallText",
    "ToolFormat",
    "find_calls",
    "fold_calls",
    "write_call",
    "write_values",
]

ToolFormat: TypeAlias = Literal["hermes", "mistral", "llama"]

MALFORMED = "malformed_call"
"""Name of a call whose name can't be parsed; the session answers that there is no such tool."""

_JSON = json.JSONDecoder()
_write = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make an encoder each time
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
_SPACE = re.compile(r"\s*")


class CallText(NamedTuple):
    """One tool call, at ``text[start:end]``."""

    start: int
    end: int
    name: str
    arguments: str
    """A JSON object, or the malformed text."""


def find_calls(text: str, start: int, tool_format: ToolFormat) -> list[CallText]:
    """Return the tool calls in ``text[start:]``, including malformed ones."""
    return list(_FINDERS[tool_format](text, start))


def write_call(call: dict[str, Any]) -> str:
    """Return a tool call of a message in the hermes dialect."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return f"<tool_call>\n{function['arguments']}\n</tool_call>"
    return write_values(function["name"], arguments)


def write_values(name: str, arguments: Any) -> str:
    """Return a tool call with decoded arguments in the hermes dialect."""
    body = _write({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _value_at(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _JSON.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _dump(value: Any) -> str:
    text = _write(value)
    # A lone surrogate, escaped in the model's JSON, can't be encoded as UTF-8.
    return text if _is_unicode(text) else json.dumps(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(value: Any, raw: str, start: int, end: int) -> CallText:
    """Return the call that a JSON value represents; ``raw`` is its text."""
    if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"]:
        arguments = value.get("arguments", value.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else _dump(arguments)
        return CallText(start, end, value["name"], text)
    return _malformed(raw, start, end)


def _malformed(raw: str, start: int, end: int) -> CallText:
    name = _NAME.search(raw)
    return CallText(start, end, name.group(1) if name else MALFORMED, raw)


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _hermes(text: str, start: int) -> Iterator[CallText]:
    while (opened := text.find(_OPEN, start)) >= 0:
        body = _skip_space(text, opened + len(_OPEN))
        read = _value_at(text, body)
        after = _skip_space(text, read[1]) if read else body
        if read and (after == len(text) or text.startswith(_CLOSE, after)):
            # Within a JSON string, the tag's text does not end the call.
            start = min(after + len(_CLOSE), len(text))
            yield _read(read[0], text[body : read[1]], opened, start)
            continue
        stops = [at for tag in (_CLOSE, _OPEN) if (at := text.find(tag, body)) >= 0]
        stop = min(stops, default=len(text))
        start = stop + len(_CLOSE) if text.startswith(_CLOSE, stop) else stop
        yield _malformed(text[body:stop].strip(), opened, start)


_CALLS, _ARGS = "[TOOL_CALLS]", "[ARGS]"


def _mistral(text: str, start: int) -> Iterator[CallText]:
    while (opened := text.find(_CALLS, start)) >= 0:
        body = _skip_space(text, opened + len(_CALLS))
        named = text.find(_ARGS, body)
        if text.startswith("[", body):
            *calls, start = _mistral_list(text, opened, body)
            yield from calls
        elif named >= 0:
            name = text[body:named].strip()
            read = _value_at(text, named + len(_ARGS))
            next_call = text.find(_CALLS, named)
            start = read[1] if read else next_call if next_call >= 0 else len(text)
            yield CallText(opened, start, name or MALFORMED, text[named + len(_ARGS) : start])
        else:
            start = len(text)
            yield _malformed(text[body:], opened, start)


def _mistral_list(text: str, opened: int, body: int) -> tuple[Any, ...]:
    """Return the calls of ``[{...}, {...}]`` and where the list ends."""
    calls: list[CallText] = []
    start, at = opened, _skip_space(text, body + 1)
    while not text.startswith("]", at):
        read = _value_at(text, at)
        if read is None:
            return (*calls, _malformed(text[at:], start, len(text)), len(text))
        calls.append(_read(read[0], text[at : read[1]], start, read[1]))
        at = _skip_space(text, read[1])
        if text.startswith(",", at):
            at = _skip_space(text, at + 1)
        elif at >= len(text):
            return (*calls, at)
        start = at
    if calls:
        calls[-1] = calls[-1]._replace(end=at + 1)
    return (*calls, at + 1)


_PYTHON = "<|python_tag|>"
_LLAMA_START = re.compile(r'\s*\{\s*"(?:name|type|function|parameters)"')


def _llama(text: str, start: int) -> Iterator[CallText]:
    begin = _skip_space(text, start)
    tagged = text.startswith(_PYTHON, begin)
    at = _skip_space(text, begin + len(_PYTHON)) if tagged else begin
    if not (tagged or _LLAMA_START.match(text, at)):
        return
    while at < len(text):
        read = _value_at(text, at)
        if read is None:
            if begin == at and not text.startswith("{", at):
                return  # words after the calls
            yield _malformed(text[at:], begin, len(text))
            return
        yield _read(read[0], text[at : read[1]], begin, read[1])
        at = _skip_space(text, read[1])
        if text.startswith((";", ","), at):
            at = _skip_space(text, at + 1)
        begin = at


_FINDERS: dict[str, Callable[[str, int], Iterator[CallText]]] = {
    "hermes": _hermes,
    "mistral": _mistral,
    "llama": _llama,
}


def fold_calls(message: Message) -> str:
    """Return an assistant message's content followed by its calls (hermes)."""
    calls = [write_call(call) for call in message.get("tool_calls") or []]
    return "\n".join([part for part in [message.get("content") or "", *calls] if part])
