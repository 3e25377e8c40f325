"""The stored form of messages: images as blobs, secrets redacted."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import image_part

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from trajgym.trajectory import Message, Store

__all__ = ["REDACTED", "redacted", "storable", "with_images"]

REDACTED = "[redacted]"


def storable(
    messages: Sequence[Message], keep: Callable[[bytes, str], str], rules: Sequence[re.Pattern[str]]
) -> list[Message]:
    """Return messages in their stored form; inline images become blobs.

    The store itself replaces lone surrogates.

    Args:
        messages: the messages.
        keep: stores an image of a media type, and returns its hash.
        rules: patterns whose matches are replaced.
    """
    kept = [_without_images(message, keep) for message in messages]
    return [redacted(message, rules) for message in kept] if rules else kept


def redacted(value: Any, rules: Sequence[re.Pattern[str]]) -> Any:
    """Return JSON values with every match of a rule replaced."""
    if isinstance(value, str):
        for rule in rules:
            value = rule.sub(REDACTED, value)
        return value
    if isinstance(value, list):
        return [redacted(part, rules) for part in value]
    if isinstance(value, dict):
        return {key: redacted(part, rules) for key, part in value.items()}
    return value


def _without_images(message: Message, keep: Callable[[bytes, str], str]) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [_part(part, keep) for part in content]
    return message if parts == content else {**message, "content": parts}


def _part(part: Any, keep: Callable[[bytes, str], str]) -> Any:
    if not isinstance(part, dict):
        return {"type": "text", "text": str(part)}
    if not isinstance(part.get("type"), str):
        return {**part, "type": "text" if "text" in part else "unknown"}
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if part["type"] != "image_url" or not isinstance(url, str) or not url.startswith("data:"):
        return part
    media, _, data = url[5:].partition(",")
    try:
        decoded = base64.b64decode(data)
    except (binascii.Error, ValueError):
        return part
    return image_part(keep(decoded, media.partition(";")[0] or "image/png"))


def with_images(messages: Sequence[Message], store: Store) -> list[Message]:
    """Return stored messages with their images inline, as engines accept them."""
    found: list[Message] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(_blob(part) for part in content):
            message = {**message, "content": [_inline(part, store) for part in content]}
        found.append(message)
    return found


def _blob(part: Any) -> str:
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    return url[5:] if isinstance(url, str) and url.startswith("blob:") else ""


def _inline(part: Any, store: Store) -> Any:
    name = _blob(part)
    if not name:
        return part
    with store.read() as run:
        blob = run.blob(name)
    url = f"data:{blob.media_type};base64,{base64.b64encode(blob.data).decode()}"
    return {**part, "image_url": {**part["image_url"], "url": url}}
