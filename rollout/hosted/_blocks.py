"""Chat form to and from the content blocks of Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.rollout.hosted._images import split_data_url
from trajgym.rollout.hosted._native import native_parts, with_native
from trajgym.rollout.rendering._parsing import tool_call
from trajgym.trajectory import text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Message, ToolSchema

__all__ = ["message_of_blocks", "to_messages", "to_tools"]

_FORM = "messages"
_PLAIN = frozenset({"text", "tool_use"})
_EMPTY = "(empty)"
"""The API refuses empty text blocks and messages without content."""


def to_messages(messages: Sequence[Message]) -> tuple[str, list[dict[str, Any]]]:
    """Return the system prompt and the messages of a request.

    System messages after the first other message become user messages, as the API has one system
    prompt. Consecutive messages of one role are merged; results of tools come first in their
    message.

    Args:
        messages: in chat form; images are data or http URLs.
    """
    system: list[str] = []
    out: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role in {"system", "developer"} and not out:
            system.append(text_of(message))
            continue
        sender = "assistant" if role == "assistant" else "user"
        blocks = _blocks(message)
        if out and out[-1]["role"] == sender:
            out[-1]["content"] += blocks
        else:
            out.append({"role": sender, "content": blocks})
    for message in out:
        message["content"] = message["content"] or [_text(_EMPTY)]
    return "\n\n".join(system), out


def to_tools(tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
    """Return tools in the form of the API."""
    out = []
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {}
        one = {"name": function["name"], "input_schema": {"type": "object", **schema}}
        if function.get("description"):
            one["description"] = function["description"]
        out.append(one)
    return out


def message_of_blocks(blocks: Sequence[dict[str, Any]]) -> Message:
    """Return the assistant message for an answer's blocks; others are only kept as native."""
    return with_native(_read(blocks), _FORM, blocks, _PLAIN)


def _read(blocks: Sequence[dict[str, Any]]) -> Message:
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    thoughts = [block.get("thinking") for block in blocks if block.get("type") == "thinking"]
    calls = [
        tool_call(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thought := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "assistant":
        kept = native_parts(message, _FORM, _read)
        return _assistant(message) if kept is None else list(kept)
    content = [block for part in _parts(message) for block in _block(part)]
    if message["role"] != "tool":
        return content
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
    return [result | ({"content": content} if content else {})]


def _assistant(message: Message) -> list[dict[str, Any]]:
    """Return the blocks of a message that the API did not generate, without its reasoning.

    The API only accepts thinking that it has signed.
    """
    blocks = [block for part in _parts(message) for block in _block(part)]
    for call in tool_calls_of(message):
        function = call["function"]
        given = _object(function["arguments"])
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        )
    return blocks


def _parts(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    return [_text(content)] if content else []


def _block(part: dict[str, Any]) -> list[dict[str, Any]]:
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        data = split_data_url(url)
        source = {"type": "url", "url": url}
        if data is not None:
            source = {"type": "base64", "media_type": data[0], "data": data[1]}
        return [{"type": "image", "source": source}]
    text = part.get("text") if part.get("type") == "text" else json.dumps(part)
    return [_text(text)] if text else []


def _text(text: Any) -> dict[str, Any]:
    return {"type": "text", "text": str(text)}


def _object(arguments: str) -> dict[str, Any]:
    """Return arguments as an object; other text becomes the value of the key ``arguments``."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
