"""OpenAI's chat format for fine-tuning: one conversation per line."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports._conversation import leaves_of
from trajgym.adapters.exports._files import JsonLines
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._incoming import Draft, ImportedMessage, need, tools_of, turns_of
from trajgym.adapters.interchange._outgoing import content_of, entries_of, tracks
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._incoming import Source
    from trajgym.adapters.interchange._outgoing import Include, Track
    from trajgym.trajectory import Message, Turn

__all__ = ["FORMAT", "export_openai_chat", "opening_id"]

_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")


def _read(source: Source) -> Iterator[Draft]:
    for where, line in source.lines():
        if "preferred_output" in line:
            raise InvalidInput(f"{where}: a preference pair, not a conversation")
        messages = []
        for message in need(line, "messages", list, where):
            source.lose("weights", isinstance(message, dict) and "weight" in message)
            plain = {k: v for k, v in dict(message).items() if k != "weight"}
            checked = source.message(plain, where)
            messages.append(
                ImportedMessage(checked, {} if checked["role"] == "assistant" else None)
            )
        source.lose_keys("other fields", line, ("messages", "tools"))
        yield Draft(
            task=opening_id("chat", messages),
            turns=turns_of(messages, policy="imported:openai-chat"),
            tools=tools_of(line.get("tools"), where),
        )


def opening_id(prefix: str, messages: list[ImportedMessage]) -> str:
    """Return a task's id that depends on the messages before the first answer."""
    opening = []
    for one in messages:
        if one.turn is not None:
            break
        opening.append(one.message)
    digest = hashlib.sha256(json.dumps(opening, sort_keys=True).encode()).hexdigest()
    return f"{prefix}-{digest[:12]}"


FORMAT = Format(
    name="openai-chat",
    about="OpenAI's chat format for fine-tuning (JSONL)",
    files=("*.jsonl",),
    read=_read,
    holds=frozenset({"developer messages", "images", "tool schemas", "tool call ids"}),
    drops={
        "weights": "messages that are excluded from training are not marked",
        "other fields": "fields besides messages and tools",
    },
    note=(
        "One line per context that was trained in: the attempt's conversation, contexts that were "
        "later rewritten, and sub-agents."
    ),
)


def export_openai_chat(export: Export, *, include: Include = "all") -> None:
    """Write ``chat.jsonl``, OpenAI's format for fine-tuning: messages and tools.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    with JsonLines(export.file("chat.jsonl")) as sink:
        for track in tracks(export, FORMAT, include):
            for leaf in leaves_of(track.tree, track.attempt):
                try:
                    sink.write(_line(export, track, leaf))
                except InvalidInput as error:
                    export.report.drop(track.tree.record.id, track.attempt.index, str(error))
                else:
                    export.report.count(synthetic=leaf.synthetic)


def _line(export: Export, track: Track, leaf: Turn) -> dict[str, Any]:
    entries = entries_of(track.tree, leaf)
    entries = entries[: len(entries) - len(leaf.observation)]
    line: dict[str, Any] = {"messages": [_message(export, one.message) for one in entries]}
    return line | ({"tools": track.tree.record.tools} if track.tree.record.tools else {})


def _message(export: Export, message: Message) -> Message:
    kept = {key: message[key] for key in _MESSAGE if message.get(key) is not None}
    if "content" in kept:
        kept["content"] = content_of(export, message)
    if not kept.get("content") and not kept.get("tool_calls"):
        kept["content"] = ""
    return kept
