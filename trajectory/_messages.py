"""Messages in OpenAI chat form, and the operations on them that several packages share.

A message is a plain ``dict``: it goes to and comes from chat endpoints unchanged. Images are
content parts whose URL is ``blob:<sha256>``; the bytes live once in the store.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypeAlias

from trajgym.trajectory._errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Message",
    "ToolSchema",
    "blob_hashes",
    "check_message",
    "digest",
    "image_part",
    "images_to_user",
    "text_of",
    "tool_calls_of",
]

Message: TypeAlias = dict[str, Any]
"""``{"role": ..., "content": ..., "tool_calls": ..., "tool_call_id": ..., ...}``"""

ToolSchema: TypeAlias = dict[str, Any]
"""``{"type": "function", "function": {"name", "description", "parameters"}}``"""

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_BLOB = "blob:"


def check_message(message: object, where: str = "message", *, role: str | None = None) -> Message:
    """Return ``message`` if it has the shape of a chat message.

    Args:
        message: the value to check.
        where: where the value came from, for the error message.
        role: the only accepted role; None accepts any.

    Raises:
        InvalidInput: the value is not a dict, or its role, content or tool calls are malformed.
    """
    if not isinstance(message, dict):
        raise InvalidInput(
            f"{where}: expected a chat message (a dict), got {type(message).__name__}"
        )
    found = message.get("role")
    if found not in _ROLES or (role is not None and found != role):
        wanted = role or f"one of {sorted(_ROLES)}"
        raise InvalidInput(f"{where}: role is {found!r}; expected {wanted}")
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise InvalidInput(f"{where}: content[{i}] is not a typed part: {part!r:.80}")
    elif content is not None and not isinstance(content, str):
        raise InvalidInput(f"{where}: content is {type(content).__name__}; expected text or parts")
    _check_tool_calls(message, where)
    return message


def _check_tool_calls(message: Message, where: str) -> None:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise InvalidInput(f"{where}: tool_calls is {type(calls).__name__}; expected a list")
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
            or not isinstance(function.get("arguments"), str)
            or not isinstance(call.get("id"), str)
        ):
            raise InvalidInput(
                f"{where}: tool_calls[{i}] needs an id and a function with name and arguments "
                f"(a JSON string); got {call!r:.120}",
            )


def tool_calls_of(message: Message) -> list[dict[str, Any]]:
    """Return the tool calls of an assistant message, or an empty list."""
    return message.get("tool_calls") or []


def text_of(message: Message) -> str:
    """Return the text of a message; images show as ``[image <hash>]``."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part) for part in content)


def _part_text(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return str(part.get("text", ""))
    url = part.get("image_url", {}).get("url", "")
    name = url[len(_BLOB) :][:12] if url.startswith(_BLOB) else part.get("type")
    return f"[image {name}]"


def image_part(blob: str) -> dict[str, Any]:
    """Return the content part that shows the stored image with hash ``blob`` (hex sha256)."""
    return {"type": "image_url", "image_url": {"url": f"{_BLOB}{blob}"}}


def blob_hashes(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the hash of every stored image that the messages refer to, in order."""
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            url = part.get("image_url", {}).get("url", "") if isinstance(part, dict) else ""
            if url.startswith(_BLOB):
                yield url[len(_BLOB) :]


def images_to_user(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the images of tool results in a user message after them.

    OpenAI's chat endpoint and many chat templates accept images in user messages only. Messages
    that need no change are returned as the same objects.
    """
    out: list[Message] = []
    lifted: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") != "tool" and lifted:
            out.append({"role": "user", "content": lifted})
            lifted = []
        content = message.get("content")
        if message.get("role") != "tool" or not isinstance(content, list):
            out.append(message)
            continue
        pictures = [part for part in content if part.get("type") == "image_url"]
        rest = [part for part in content if part.get("type") != "image_url"]
        if pictures:
            message = {**message, "content": rest or ""}
            lifted += pictures
        out.append(message)
    if lifted:
        out.append({"role": "user", "content": lifted})
    return out


def digest(messages: Sequence[Message]) -> str:
    """Return the sha256 (hex) of messages in canonical JSON: equal content, equal digest."""
    canonical = json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
