"""Conversations in the form that trainers' chat templates take."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from trajgym.rollout.hosted import without_native
from trajgym.trajectory import (
    InvalidInput,
    attempt_turns,
    blob_hashes,
    images_to_user,
    tool_calls_of,
)
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajgym.trajectory import Attempt, Message, SessionTree, Turn

__all__ = [
    "base_chain",
    "leaves_of",
    "picture_messages",
    "read_arguments",
    "same_messages",
    "template_messages",
    "tools_json",
    "until_answer",
]

_DEPTH = 100
"""Deepest nesting of arguments; what is deeper is a model that repeats itself."""


def template_messages(messages: Iterable[Message], where: str) -> list[Message]:
    """Return copies of the messages with the arguments of tool calls as objects.

    Chat templates serialise the arguments themselves: a JSON string would be escaped twice. Lone
    surrogates become U+FFFD.

    Raises:
        InvalidInput: the arguments of a call are not a JSON object.
    """
    return [_with_objects(message, where) for message in messages]


def _with_objects(message: Message, where: str) -> Message:
    message = without_native(message)
    calls = tool_calls_of(message)
    if not calls:
        return dict(replace_surrogates(message))
    return replace_surrogates(message) | {
        "tool_calls": [_with_object(call, where) for call in replace_surrogates(calls)]
    }


def _with_object(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = read_arguments(function["arguments"])
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"{where}: call {call['id']!r} of {function['name']!r} has arguments that are not a "
            f"JSON object: {function['arguments']!r:.80}; a chat template can't render them as "
            "they were sampled",
        )
    return call | {"function": function | {"arguments": arguments}}


def read_arguments(text: str) -> Any:
    """Parse a tool call's arguments into values that can be written as JSON.

    Lone surrogates become U+FFFD.

    Raises:
        ValueError: the text is not JSON, has a number that JSON excludes (NaN, infinity), or is
            nested more deeply than encoders accept.
    """
    try:
        found = json.loads(text, parse_constant=_not_json, parse_float=_finite)
        return replace_surrogates(_shallow(found))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _shallow(value: Any) -> Any:
    """Return the value unless it is nested too deeply; each encoder has another limit."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [item for one in inner for item in one if isinstance(item, dict | list)]
        if not level:
            return value
    raise ValueError(f"nested more than {_DEPTH} levels deep")


def _not_json(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _not_json(text)


def picture_messages(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Return the messages for trainers with an ``images`` column, and the images' hashes.

    Every content is a list of parts. Each image is a part ``{"type": "image"}`` of a user message;
    images of tool results are moved to a user message after the results. (If contents are strings,
    TRL inserts all images into the first user message.)
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
    """Return the session's tool schemas as one JSON string, ``[]`` if it had no tools.

    A string, because columnar readers merge objects with different keys and fill in nulls.
    """
    return json.dumps(tree.record.tools, ensure_ascii=False)


def same_messages(left: Iterable[Message], right: Iterable[Message]) -> bool:
    """Return whether two conversations are equal except for the ids of tool calls."""
    return [_without_ids(message) for message in left] == [_without_ids(one) for one in right]


def _without_ids(message: Message) -> dict[str, Any]:
    kept = {k: v for k, v in message.items() if k not in {"tool_calls", "tool_call_id"} and v}
    kept["calls"] = [call["function"] for call in tool_calls_of(message)]
    return kept


def leaves_of(tree: SessionTree, attempt: Attempt) -> list[Turn]:
    """Return the turns whose conversation no later turn of the attempt continues unchanged."""
    turns = [tree.turns[index] for index in attempt_turns(tree, attempt)]
    continued = set()
    for turn in turns:
        base = tree.base(turn)
        if base is not None and (turn.kept is None or turn.kept >= len(tree.conversation(base))):
            continued.add(base.index)
    return [turn for turn in turns if turn.index not in continued]


def until_answer(tree: SessionTree, leaf: Turn) -> list[Message]:
    """Return the conversation up to and including this turn's message."""
    messages = tree.conversation(leaf)
    return messages[: len(messages) - len(leaf.observation)]


def base_chain(tree: SessionTree, leaf: Turn) -> list[Turn]:
    """Return the turns whose deltas make up this turn's conversation, first turn first."""
    chain = [leaf]
    while (base := tree.base(chain[-1])) is not None:
        chain.append(base)
    return chain[::-1]
