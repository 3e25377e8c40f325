"""Parsing response ids into a message and its spans, for renderers that work on text."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.rollout._ids import as_list
from trajgym.rollout.rendering._base import Parsed
from trajgym.rollout.rendering._token_text import TokenText
from trajgym.rollout.rendering._tool_text import find_calls
from trajgym.trajectory import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trajgym.rollout.rendering._tool_text import CallText, ToolFormat
    from trajgym.trajectory import IntArray, Message

__all__ = ["Markers", "call_id", "open_reasoning", "parse_response", "tool_call"]


class Markers(NamedTuple):
    """The texts that enclose a model's reasoning."""

    open: str
    close: str


def call_id(response_ids: IntArray | Sequence[int], index: int, prompt_size: int) -> str:
    """Return an id for a tool call, of nine letters and digits: equal for equal ids.

    Some templates (Mistral's) accept only nine characters.
    """
    data = np.asarray(response_ids, dtype=np.int64).tobytes()
    seed = f"{index}:{prompt_size}:".encode()
    return hashlib.blake2b(seed + data, digest_size=5).hexdigest()[:9]


def tool_call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call in chat form."""
    function = {"name": name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}


def open_reasoning(text: str, markers: Markers, *, opened: bool) -> int | None:
    """Return where reasoning begins in a response, or None if it does not start with reasoning.

    Args:
        text: the response.
        markers: the markers of reasoning.
        opened: whether the prompt has already opened it.
    """
    lead = len(text) - len(text.lstrip())
    if text.startswith(markers.open, lead):
        return lead + len(markers.open)
    return 0 if opened else None


class _Reasoning(NamedTuple):
    text: str | None
    start: int
    end: int  # after the closing marker: where the answer begins


def _reasoning(text: str, markers: Markers | None, *, opened: bool) -> _Reasoning:
    inner = None if markers is None else open_reasoning(text, markers, opened=opened)
    if markers is None or inner is None:
        return _Reasoning(None, 0, 0)
    start = (
        text.find(markers.open) if text.startswith(markers.open, inner - len(markers.open)) else 0
    )
    close = text.find(markers.close, inner)
    if close < 0:
        return _Reasoning(text[inner:].strip(), start, len(text))
    return _Reasoning(text[inner:close].strip(), start, close + len(markers.close))


def _answer(text: str, start: int, calls: Sequence[CallText], *, strip: bool) -> str:
    pieces, at = [], start
    for call in calls:
        pieces.append(text[at : call.start])
        at = call.end
    answer = "".join([*pieces, text[at:]])
    if calls:
        return answer.strip()
    return answer.lstrip() if strip else answer


def parse_response(
    response_ids: IntArray | Sequence[int],
    *,
    decode: Callable[[list[int]], str],
    stop_ids: Collection[int],
    markers: Markers | None,
    opened: bool,
    tool_format: ToolFormat | None,
    prompt_size: int,
    lead: str = "",
) -> Parsed:
    """Parse a response.

    Args:
        response_ids: ``[N]``.
        decode: converts ids to text, including special tokens.
        stop_ids: ids that end a response.
        markers: the markers of reasoning, if the model reasons.
        opened: whether the prompt has already opened the reasoning.
        tool_format: the dialect of tool calls; None parses none.
        prompt_size: number of prompt ids, so that call ids of equal responses differ.
        lead: space that the template inserts before the content, and which is not part of it.
    """
    ids = as_list(response_ids)
    stopped = bool(ids) and ids[-1] in stop_ids
    said = TokenText(ids[:-1] if stopped else ids, decode)
    reasoning = _reasoning(said.text, markers, opened=opened)
    calls = find_calls(said.text, reasoning.end, tool_format) if tool_format else []
    message: Message = {
        "role": "assistant",
        "content": _answer(
            said.text, reasoning.end, calls, strip=reasoning.text is not None
        ).removeprefix(lead),
    }
    spans = []
    if reasoning.text:
        message["reasoning_content"] = reasoning.text
    if reasoning.end > reasoning.start:
        spans.append(Span("reasoning", *said.span(reasoning.start, reasoning.end)))
    if calls:
        message["tool_calls"] = [
            tool_call(call_id(response_ids, i, prompt_size), call.name, call.arguments)
            for i, call in enumerate(calls)
        ]
        for call, named in zip(calls, message["tool_calls"], strict=True):
            spans.append(Span("tool_call", *said.span(call.start, call.end), named["id"]))
    finish = "tool_calls" if calls else "stop"
    return Parsed(message, tuple(spans), finish if stopped else "length")  # type: ignore[arg-type]
