"""ShareGPT conversations, with LLaMA-Factory's roles for tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports._conversation import leaves_of, read_arguments
from trajgym.adapters.exports._files import JsonLines
from trajgym.adapters.exports._images import write_image
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    call_of,
    need,
    tools_of,
    turns_of,
)
from trajgym.adapters.interchange._outgoing import entries_of, tracks
from trajgym.adapters.interchange.formats._openai_chat import opening_id
from trajgym.trajectory import InvalidInput, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._incoming import Source
    from trajgym.adapters.interchange._outgoing import Include, Track
    from trajgym.trajectory import Message, Turn

__all__ = ["FORMAT", "export_sharegpt"]

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "call",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}
_IMAGE = "<image>"


def _read(source: Source) -> Iterator[Draft]:
    for path in source.paths:
        for where, line in _conversations(source, path):
            yield _draft(source, path, where, line)


def _conversations(source: Source, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the conversations of a file: JSON lines, or one JSON array."""
    with path.open("rb") as file:
        array = file.read(64).lstrip().startswith(b"[")
    if not array:
        yield from (one for one in source.lines() if one[0].startswith(f"{path}:"))
        return
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"{path}: not JSON: {error}") from error
    for number, line in enumerate(found):
        if not isinstance(line, dict):
            raise InvalidInput(f"{path}[{number}]: expected an object")
        yield f"{path}[{number}]", line


def _draft(source: Source, path: Path, where: str, line: dict[str, Any]) -> Draft:
    messages: list[ImportedMessage] = []
    if line.get("system"):
        messages.append(ImportedMessage({"role": "system", "content": line["system"]}))
    images = iter(line.get("images") or ())
    for part in need(line, "conversations", list, where):
        messages += _messages_of(messages, part, where)
        if isinstance(messages[-1].message.get("content"), str) and messages[-1].turn is None:
            _place_images(source, messages[-1].message, images, path, where)
    left = sum(1 for _ in images)
    if left:
        raise InvalidInput(f"{where}: {left} images without an <image> mark in a message")
    source.lose_keys("other fields", line, ("conversations", "system", "tools", "id", "images"))
    tools = line.get("tools")
    try:
        schemas = json.loads(tools) if isinstance(tools, str) and tools.strip() else tools
    except ValueError as error:
        raise InvalidInput(f"{where}: tools is not JSON: {error}") from error
    return Draft(
        task=opening_id("sharegpt", messages),
        session=str(line.get("id") or ""),
        turns=turns_of(messages, policy="imported:sharegpt"),
        tools=tools_of(schemas or (), where),
    )


def _messages_of(before: list[ImportedMessage], part: Any, where: str) -> list[ImportedMessage]:
    """Return the message of one part; calls extend the answer that they follow."""
    if not isinstance(part, dict):
        raise InvalidInput(f"{where}: a part of the conversation is {type(part).__name__}")
    role = _ROLES.get(part.get("from", ""))
    value = part.get("value")
    if role is None or not isinstance(value, str):
        raise InvalidInput(f"{where}: from is {part.get('from')!r}, or value is not text")
    if role == "call":
        calls = _calls(before, value, where)
        if before and before[-1].turn is not None and not tool_calls_of(before[-1].message):
            before[-1].message["tool_calls"] = calls
            return []
        return [ImportedMessage({"role": "assistant", "content": "", "tool_calls": calls}, {})]
    if role != "tool":
        return [
            ImportedMessage({"role": role, "content": value}, {} if role == "assistant" else None)
        ]
    return [ImportedMessage(message) for message in _results(before, value)]


def _calls(before: list[ImportedMessage], value: str, where: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise InvalidInput(f"{where}: function_call is not JSON: {error}") from error
    calls = found if isinstance(found, list) else [found]
    first = sum(len(tool_calls_of(one.message)) for one in before)
    made = []
    for number, call in enumerate(calls, first):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise InvalidInput(f"{where}: a function_call without a name: {call!r:.80}")
        made.append(call_of(call["name"], call.get("arguments", {}), f"call-{number}"))
    return made


def _results(before: list[ImportedMessage], value: str) -> list[Message]:
    """Return the results of the last calls; several are a JSON list of as many texts."""
    calls = next(
        (tool_calls_of(one.message) for one in reversed(before) if one.turn is not None), []
    )
    values: list[Any] = [value]
    if len(calls) > 1:
        try:
            listed = json.loads(value)
        except ValueError:
            listed = None
        if isinstance(listed, list) and len(listed) == len(calls):
            values = [one if isinstance(one, str) else json.dumps(one) for one in listed]
    if not calls:
        return [{"role": "user", "content": value}]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call, text in zip(calls, values, strict=False)
    ]


def _place_images(
    source: Source, message: Message, images: Iterator[Any], path: Path, where: str
) -> None:
    pieces = message["content"].split(_IMAGE)
    if len(pieces) == 1:
        return
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(pieces):
        if number:
            name = next(images, None)
            if not isinstance(name, str):
                raise InvalidInput(f"{where}: an <image> mark without a path in images")
            remote = "://" in name or name.startswith("data:")
            parts.append(
                source.image_url(name, where) if remote else source.image_file(path.parent / name)
            )
        if text:
            parts.append({"type": "text", "text": text})
    message["content"] = parts


FORMAT = Format(
    name="sharegpt",
    about="ShareGPT conversations, with LLaMA-Factory's roles for tools",
    files=("*.jsonl", "*.json"),
    read=_read,
    holds=frozenset({"images", "tool schemas", "session id"}),
    drops={"other fields": "fields besides conversations, system, tools, images and id"},
    note=(
        "An answer with text and calls becomes a `gpt` part and a `function_call` part; "
        "LLaMA-Factory leaves out conversations in which questions and answers don't alternate."
    ),
)


def export_sharegpt(export: Export, *, include: Include = "all") -> None:
    """Write ``sharegpt.jsonl``: conversations of human, gpt, function_call and observation.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    with JsonLines(export.file("sharegpt.jsonl")) as sink:
        for track in tracks(export, FORMAT, include):
            for number, leaf in enumerate(leaves_of(track.tree, track.attempt)):
                try:
                    sink.write(_line(export, track, leaf, number))
                except InvalidInput as error:
                    export.report.drop(track.tree.record.id, track.attempt.index, str(error))
                else:
                    export.report.count(synthetic=leaf.synthetic)


def _line(export: Export, track: Track, leaf: Turn, number: int) -> dict[str, Any]:
    entries = entries_of(track.tree, leaf)
    messages = [one.message for one in entries[: len(entries) - len(leaf.observation)]]
    images: list[str] = []
    parts: list[dict[str, str]] = []
    at = 0
    while at < len(messages):
        run = _leading_results(messages, at)
        if run:
            texts = [_text(export, one, images) for one in messages[at : at + run]]
            value = texts[0] if run == 1 else json.dumps(texts, ensure_ascii=False)
            parts.append({"from": "observation", "value": value})
            at += run
            continue
        parts += _parts(export, messages[at], images)
        at += 1
    name = track.id + (f"-{number}" if number else "")
    line: dict[str, Any] = {"id": name, "conversations": parts}
    if track.tree.record.tools:
        bare = [tool.get("function", tool) for tool in track.tree.record.tools]
        line["tools"] = json.dumps(bare, ensure_ascii=False)
    return line | ({"images": images} if images else {})


def _leading_results(messages: list[Message], at: int) -> int:
    end = at
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return end - at


def _parts(export: Export, message: Message, images: list[str]) -> list[dict[str, str]]:
    role = {"user": "human", "assistant": "gpt"}.get(message["role"], "system")
    text = _text(export, message, images)
    calls = tool_calls_of(message)
    parts = [{"from": role, "value": text}] if text or not calls else []
    if calls:
        plain = [_call(one["function"]) for one in calls]
        value = json.dumps(plain[0] if len(plain) == 1 else plain, ensure_ascii=False)
        parts.append({"from": "function_call", "value": value})
    return parts


def _call(function: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = read_arguments(function["arguments"])
    except ValueError:
        arguments = function["arguments"]
    return {"name": function["name"], "arguments": arguments}


def _text(export: Export, message: Message, images: list[str]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    return "".join(_piece(export, part, images) for part in parts)


def _piece(export: Export, part: dict[str, Any], images: list[str]) -> str:
    if part.get("type") == "text":
        text: str = part.get("text", "")
        if _IMAGE in text:
            raise InvalidInput("a text contains <image>, which marks an image in this format")
        return text
    if part.get("type") != "image_url":
        raise InvalidInput(f"a {part.get('type')!r} part, which this format can't hold")
    url = part["image_url"]["url"]
    if not url.startswith("blob:"):
        images.append(url)
    elif export.blobs is None:
        raise InvalidInput("the session has images; pass blobs=run.blob to export")
    else:
        images.append(write_image(export.out, url[len("blob:") :], export.blobs))
    return _IMAGE
