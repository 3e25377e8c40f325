"""Conversations in the form that chat templates of trainers take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput, blob_hashes, images_to_user, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory import Message, SessionTree

__all__ = ["picture_messages", "same_messages", "template_messages", "tools_json"]


def template_messages(messages: Iterable[Message], where: str) -> list[Message]:
    """Return copies of the messages whose tool calls have their arguments as objects.

    Chat templates serialise the arguments themselves: a JSON string would be escaped twice.

    Raises:
        InvalidInput: arguments that are not a JSON object.
    """
    return [_with_objects(message, where) for message in messages]


def _with_objects(message: Message, where: str) -> Message:
    calls = tool_calls_of(message)
    if not calls:
        return dict(message)
    return message | {"tool_calls": [_with_object(call, where) for call in calls]}


def _with_object(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"{where}: call {call['id']!r} of {function['name']!r} has arguments that are not a "
            f"JSON object: {function['arguments']!r:.80}; a template can't render them as said",
        )
    return call | {"function": function | {"arguments": arguments}}


def picture_messages(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Return the messages as trainers with an ``images`` column take them, and the images' hashes.

    Every content is a list of parts, and each image a part ``{"type": "image"}`` in a user message;
    those of tool results stand in a user message after them. (TRL puts all images in front of the
    first user message whose content is a string.)
    """
    placed = images_to_user(messages)
    return [_with_pictures(message) for message in placed], list(blob_hashes(placed))


def _with_pictures(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        content = [{"type": "text", "text": content or ""}]
    shown = [{"type": "image"} if part.get("type") == "image_url" else part for part in content]
    return message | {"content": shown}


def tools_json(tree: SessionTree) -> str:
    """Return the session's tool schemas as one JSON string, ``[]`` if it had none.

    A string, because columnar readers merge objects of different shapes and fill in nulls.
    """
    return json.dumps(tree.record.tools, ensure_ascii=False)


def same_messages(left: Iterable[Message], right: Iterable[Message]) -> bool:
    """Return whether two conversations say the same; ids of tool calls are left out."""
    return [_said(message) for message in left] == [_said(message) for message in right]


def _said(message: Message) -> dict[str, Any]:
    said = {k: v for k, v in message.items() if k not in {"tool_calls", "tool_call_id"} and v}
    said["calls"] = [call["function"] for call in tool_calls_of(message)]
    return said
