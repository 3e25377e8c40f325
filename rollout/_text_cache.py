"""The texts of conversations that were rendered lately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trajgym.trajectory import Message, ToolSchema

__all__ = ["TextCache", "conversation_key"]

Key: TypeAlias = "tuple[Hashable, Hashable]"
_NODE = 48
"""Bytes of a key's tuple or of a place in one, about; strings are shared."""


class TextCache:
    """Keeps what was asked for last; for all sessions and threads that share a renderer.

    A turn's prompt is needed again when the next turn looks whether the template left it alone.

    Args:
        most: bytes of memory that all of it may take, about; what alone takes more is not kept.
    """

    def __init__(self, most: int = 1 << 26) -> None:
        self._most = most
        self._size = 0
        self._texts: OrderedDict[Key, tuple[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[TextCache], tuple[int]]:
        return TextCache, (self._most,)  # a renderer that goes to another process begins anew

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, key: Key) -> str | None:
        """Return the text of a conversation, or None."""
        with self._lock:
            found = self._texts.get(key)
            if found is None:
                return None
            self._texts.move_to_end(key)
            return found[0]

    def put(self, key: Key, text: str) -> None:
        """Keep a conversation's text, and let go of those that were not used for longest."""
        # The key keeps the messages alive, which say about what the text says.
        size = 2 * len(text) + _NODE * _nodes(key)
        with self._lock:
            if size > self._most or key in self._texts:
                return
            self._texts[key] = text, size
            self._size += size
            while self._size > self._most:
                _, (_, old) = self._texts.popitem(last=False)
                self._size -= old


def conversation_key(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Key:
    """Return what two conversations have in common if and only if they say the same.

    It is made of the messages' values, not of the objects: a message that is changed in place gives
    another key. Strings are shared and keep their hash, so this is far cheaper than to render.
    """
    return tuple(map(_frozen, messages)), tuple(map(_frozen, tools))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        # In the order of the keys: a template may write them in that order.
        return (dict, *((_frozen(key), _frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), *map(_frozen, value))
    return (type(value), repr(value))  # True, 1, 1.0 and 0.0, -0.0 are equal, not written alike


def _nodes(key: Hashable) -> int:
    return 1 + sum(map(_nodes, key)) if isinstance(key, tuple) else 1
