"""Chat form to and from the items of OpenAI's Responses API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.rollout.hosted._native import native_parts, with_native
from trajgym.rollout.rendering._parsing import tool_call
from trajgym.trajectory import tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Message, ToolSchema

__all__ = ["message_of_items", "to_input", "to_tools"]

_FORM = "responses"
_PLAIN = frozenset({"message", "function_call"})


def to_input(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the input items of a request.

    Args:
        messages: in chat form; images are data or http URLs.
    """
    return [item for message in messages for item in _items(message)]


def to_tools(tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    """Return tools in the form of the API; their schemas are not made strict."""
    out = []
    for tool in tools:
        function = tool["function"]
        one = {
            "type": "function",
            "name": function["name"],
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
            "strict": bool(function.get("strict")),
        }
        if function.get("description"):
            one["description"] = function["description"]
        out.append(one)
    return out


def message_of_items(items: Sequence[dict[str, Any]]) -> Message:
    """Return the assistant message for output items; unknown items are only kept as native."""
    return with_native(_read(items), _FORM, items, _PLAIN)


def _read(items: Sequence[dict[str, Any]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type")
        if kind == "message":
            texts += [p.get("text") or p.get("refusal") or "" for p in item.get("content") or ()]
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            thoughts += [p["text"] for p in parts if p.get("text")]
        elif kind == "function_call":
            calls.append(tool_call(item["call_id"], item["name"], item["arguments"]))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _items(message: Message) -> list[dict[str, Any]]:
    role = message["role"]
    if role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message.get("tool_call_id"),
                "output": _content(message, "input"),
            }
        ]
    if role != "assistant":
        return [{"type": "message", "role": role, "content": _content(message, "input")}]
    kept = native_parts(message, _FORM, _read)
    if kept is not None and all(map(_is_whole, kept)):
        return [_again(item) for item in kept]
    items: list[dict[str, Any]] = []
    if message.get("content"):
        content = _content(message, "output")
        items.append({"type": "message", "role": "assistant", "content": content})
    for call in tool_calls_of(message):
        function = call["function"]
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    return items


def _is_whole(item: dict[str, Any]) -> bool:
    """Return whether an item can be sent back: reasoning can't where only its id was given."""
    return item.get("type") != "reasoning" or bool({"encrypted_content", "content"} & set(item))


def _again(item: dict[str, Any]) -> dict[str, Any]:
    """Return an output item as input: without its status, which only answers have."""
    return {name: value for name, value in item.items() if name != "status"}


def _content(message: Message, side: str) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return content or ""
    return [_part(part, side) for part in content]


def _part(part: dict[str, Any], side: str) -> dict[str, Any]:
    if part.get("type") == "image_url":
        image = part["image_url"]
        return {
            "type": "input_image",
            "image_url": image["url"],
            "detail": image.get("detail", "auto"),
        }
    text = part.get("text") if part.get("type") == "text" else json.dumps(part)
    return {"type": f"{side}_text", "text": text or ""}
