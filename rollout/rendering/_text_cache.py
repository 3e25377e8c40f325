"""A cache of the texts of recently rendered prompts."""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trajgym.trajectory import Message, ToolSchema

__all__ = ["Rendered", "TextCache", "conversation_key", "place_of", "tools_key"]

Key: TypeAlias = "tuple[Hashable, Hashable]"
Place: TypeAlias = "Hashable"
_Names: TypeAlias = "tuple[list[str], ...]"
_MESSAGE, _CALL, _NODE = 640, 1280, 48
"""Approximate sizes in bytes of what is kept for a message, for a tool call and for each part of a
:func:`conversation_key`; texts are shared with the messages."""
_COMPARED = 8
"""From how many of the last messages an entry's place is derived."""


class Rendered:
    """A prompt that was rendered.

    Args:
        messages: the conversation; copied, because messages can be changed in place.
        prepared: the messages in the form that the template was given.
        text: the prompt.
        start: a prompt that these messages start with; its copies are used again.
    """

    __slots__ = ("_callers", "_content", "_copies", "_key", "_names", "prepared", "text")

    def __init__(
        self,
        messages: Sequence[Message],
        prepared: list[Message],
        text: str,
        start: Rendered | None = None,
    ) -> None:
        self.prepared = prepared
        self.text = text
        self._key: Hashable = None
        self._copies: list[Message] = []
        self._callers: list[int] = []
        """The places of messages with tool calls."""
        self._names: _Names = ([], [], [])
        self._content = 0
        """Approximate size in bytes of what is kept besides the texts."""
        new = messages
        if start is not None and start._key is None:
            new = messages[len(start._copies) :]
            self._copies, self._callers = start._copies, start._callers
            self._names, self._content = start._names, start._content
        if all(map(_is_usual, new)):
            callers = [i for i, one in enumerate(new) if one.get("tool_calls")]
            names = _names(new, callers)
            self._content += _MESSAGE * len(new) + _CALL * sum(
                len(new[i]["tool_calls"]) for i in callers
            )
            self._callers = [*self._callers, *(len(self._copies) + i for i in callers)]
            self._copies = [*self._copies, *map(_copied, new)]
            self._names = tuple(map(add, self._names, names))
        else:
            self._key = conversation_key(messages, ())
            self._content = _NODE * _nodes(self._key)

    @property
    def size(self) -> int:
        """Approximate size in bytes; the messages' texts are about as long as the prompt."""
        return 2 * len(self.text) + self._content

    def shows(self, messages: list[Message]) -> bool:
        """Return whether it was rendered from messages with exactly this content.

        Equality alone is not sufficient: True == 1 == 1.0, and equal dicts can have their keys in
        another order, but a template writes them differently. It does for messages that contain
        only texts, if the names are compared in their order, too. Texts that are the same objects
        are not read, so this takes a fraction of a microsecond per message; other messages, such as
        those with images, are compared by :func:`conversation_key`, which takes several.
        """
        if self._key is not None:
            return conversation_key(messages, ()) == self._key
        same = messages == self._copies
        return same and _names(messages, self._callers) == self._names


class TextCache:
    """A least-recently-used cache, shared by all sessions and threads of a renderer.

    A turn's prompt is needed again when the next turn checks that the template did not change it,
    and its messages need not be prepared again then.

    Args:
        most: approximate memory limit in bytes; larger entries are not cached.
    """

    def __init__(self, most: int = 1 << 26) -> None:
        self._most = most
        self._size = 0
        self._entries: OrderedDict[Place, Rendered] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[TextCache], tuple[int]]:
        return TextCache, (self._most,)  # a copy in another process starts empty

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, place: Place, messages: list[Message]) -> Rendered | None:
        """Return the prompt that shows these messages, or None.

        Args:
            place: :func:`place_of` the messages.
            messages: the conversation.
        """
        with self._lock:
            found = self._entries.get(place)
            if found is not None:
                self._entries.move_to_end(place)
        return found if found is not None and found.shows(messages) else None

    def put(self, place: Place, entry: Rendered) -> None:
        """Add a prompt, and evict the least recently used ones."""
        if entry.size > self._most:
            return
        with self._lock:
            replaced = self._entries.pop(place, None)
            self._entries[place] = entry
            self._size += entry.size - (0 if replaced is None else replaced.size)
            while self._size > self._most:
                self._size -= self._entries.popitem(last=False)[1].size

    def expect_less(self, place: Place) -> None:
        """Evict this prompt before others, because its conversation has gone on."""
        with self._lock:
            if place in self._entries:
                self._entries.move_to_end(place, last=False)


def tools_key(tools: Sequence[ToolSchema]) -> Hashable:
    """Return a key that is equal for tools with equal schemas."""
    try:
        return marshal.dumps(list(tools), 2)  # version 2 depends on nothing but values
    except ValueError:
        return tuple(map(_frozen, tools))


def place_of(messages: list[Message], tools: Hashable) -> Place:
    """Return where the prompt of a conversation is kept; it rarely is that of another one, too.

    Args:
        messages: the conversation.
        tools: :func:`tools_key` of its tools.
    """
    texts = [message.get("content") for message in messages[-_COMPARED:]]
    return len(messages), tools, tuple([text if type(text) is str else "" for text in texts])


def _is_usual(message: Message) -> bool:
    """Return whether a message contains only texts, apart from a list of tool calls."""
    calls = message.get("tool_calls")
    if type(message) is not dict or not _are_texts(message, apart_from="tool_calls"):
        return False
    return calls is None or (
        type(calls) is list
        and all(
            type(call) is dict
            and _are_texts(call, apart_from="function")
            and type(call.get("function")) is dict
            and _are_texts(call["function"])
            for call in calls
        )
    )


def _are_texts(values: dict[Any, Any], apart_from: str = "") -> bool:
    return all(
        type(name) is str and (type(value) is str or value is None or name == apart_from)
        for name, value in values.items()
    )


def _copied(message: Message) -> Message:
    calls = message.get("tool_calls")
    if calls is None:
        return dict(message)
    copies = [{**call, "function": dict(call["function"])} for call in calls]
    return {**message, "tool_calls": copies}


def _names(messages: Sequence[Message], callers: list[int]) -> _Names:
    """Return the names in usual messages, in their tool calls, and in the functions of these."""
    calls = [call for i in callers for call in messages[i]["tool_calls"]]
    functions = [call["function"] for call in calls]
    return _flat(messages), _flat(calls), _flat(functions)


def _flat(dicts: Sequence[dict[str, Any]]) -> list[str]:
    return list(chain.from_iterable(dicts))


def conversation_key(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Key:
    """Return a key that is equal for two conversations if and only if their content is.

    It is built from the messages' values, so a message that is changed in place has another key.
    """
    return tuple(map(_frozen, messages)), tuple(map(_frozen, tools))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        # The order of keys matters, because a template may write them in that order.
        return (dict, *((_frozen(key), _frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), *map(_frozen, value))
    return (
        type(value),
        repr(value),
    )  # True == 1 == 1.0 and 0.0 == -0.0, but they are written differently


def _nodes(key: Hashable) -> int:
    return 1 + sum(map(_nodes, key)) if isinstance(key, tuple) else 1
