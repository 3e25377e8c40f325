"""Answers in a provider's own form, kept if the chat form would lose information.

Thinking blocks with signatures and encrypted reasoning must be sent back to the provider unchanged
and in order. An assistant message with such parts has the key ``native``, which contains the name
of the form and the answer's parts in order. It is not sent to other endpoints, and it is ignored
if the rest of the message has been edited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trajgym.trajectory import Message

__all__ = ["native_parts", "with_native", "without_native"]

_KEY = "native"


def with_native(
    message: Message, form: str, parts: Sequence[dict[str, Any]], plain: frozenset[str]
) -> Message:
    """Return a message with its native parts, if there are any besides the ``plain`` types."""
    if all(part.get("type") in plain for part in parts):
        return message
    return {**message, _KEY: {"form": form, "parts": list(parts)}}


def without_native(message: Message) -> Message:
    """Return a message without its native parts, for other endpoints."""
    if _KEY not in message:
        return message
    return {name: value for name, value in message.items() if name != _KEY}


def native_parts(
    message: Message, form: str, read: Callable[[Sequence[dict[str, Any]]], Message]
) -> list[dict[str, Any]] | None:
    """Return the native parts of a message, or None if it has none that are still valid.

    Args:
        message: an assistant message.
        form: name of the provider's form.
        read: converts parts to a message, which must equal the rest of ``message``.
    """
    native = message.get(_KEY)
    if not isinstance(native, dict) or native.get("form") != form:
        return None
    parts: list[dict[str, Any]] = native["parts"]
    return parts if read(parts) == without_native(message) else None
