"""Stored images in requests: as data URLs."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from trajgym.rollout._policy import PolicyRejected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.trajectory import Message

__all__ = ["split_data_url", "with_images"]

_BLOB = "blob:"


def with_images(message: Message, images: Mapping[str, bytes]) -> Message:
    """Return a message whose stored images are data URLs.

    Raises:
        PolicyRejected: the bytes of an image are missing.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_resolved(part, images) for part in content]}


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a data URL; None for another URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head[len("data:") : -len(";base64")], data


def _resolved(part: dict[str, Any], images: Mapping[str, bytes]) -> dict[str, Any]:
    image = part.get("image_url") or {}
    url = image.get("url", "")
    if not url.startswith(_BLOB):
        return part
    data = images.get(url[len(_BLOB) :])
    if data is None:
        raise PolicyRejected(
            f"the messages show image {url[:24]!r}, whose bytes are not in request.images",
        )
    encoded = base64.b64encode(data).decode()
    return {**part, "image_url": {**image, "url": f"data:{_media_type(data)};base64,{encoded}"}}


def _media_type(data: bytes) -> str:
    kinds = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
    for magic, kind in kinds.items():
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "application/octet-stream"
