"""mini-swe-agent's trajectory files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports._conversation import read_arguments
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._incoming import Draft, ImportedMessage, call_of, need, turns_of
from trajgym.adapters.interchange._outgoing import (
    content_of,
    conversation,
    write_documents,
)
from trajgym.adapters.interchange.formats._limits import ended
from trajgym.trajectory import InvalidInput, Status, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._incoming import Source
    from trajgym.adapters.interchange._outgoing import Entry, Include, Track
    from trajgym.trajectory import Message

__all__ = ["FORMAT", "export_mini"]

_VERSIONS = ("mini-swe-agent-1", "mini-swe-agent-1.1")
_BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The bash command to execute"}
            },
            "required": ["command"],
        },
    },
}


def _read(source: Source) -> Iterator[Draft]:
    for path, document in source.json():
        where = str(path)
        if document.get("trajectory_format") not in _VERSIONS:
            found = document.get("trajectory_format")
            raise InvalidInput(f"{where}: trajectory_format is {found!r}; expected {_VERSIONS[-1]}")
        info = need(document, "info", dict, where)
        config = info.get("config") or {}
        model = (config.get("model") or {}).get("model_name") or "unknown"
        messages = [
            one
            for message in need(document, "messages", list, where)
            for one in _messages_of(source, message, where)
        ]
        if not any(one.turn is not None for one in messages):
            raise InvalidInput(f"{where}: no answer of the model")
        status, cause = ended(info.get("exit_status") or "")
        source.lose("configuration", bool(config))
        source.lose("model stats", bool(info.get("model_stats")))
        source.lose_keys("other fields", document, ("info", "messages", "trajectory_format"))
        labels = {"submission": info.get("submission"), "exit_status": info.get("exit_status")}
        labels["mini_version"] = info.get("mini_version")
        turns = turns_of(messages, policy=f"imported:{model}")
        yield Draft(
            task=path.name.removesuffix(".json").removesuffix(".traj"),
            prompt=next((_plain(one) for one in messages if one.message["role"] == "user"), None),
            turns=turns,
            tools=[_BASH] if any(turn.calls for turn in turns) else [],
            status=status,
            cause=cause,
            labels={name: str(value) for name, value in labels.items() if value},
            started=turns[0].started_at,
        )


def _plain(one: ImportedMessage) -> str | None:
    content = one.message.get("content")
    return content if isinstance(content, str) else None


def _messages_of(source: Source, message: dict[str, Any], where: str) -> Iterator[ImportedMessage]:
    """Yield the messages of one entry, which can be a response of OpenAI's Responses API."""
    extra = message.get("extra") or {}
    role = message.get("role")
    if role == "exit":
        return
    if message.get("type") == "function_call_output":
        text = message.get("output", "")
        result = {"role": "tool", "tool_call_id": message["call_id"], "content": text}
        yield ImportedMessage(source.message(result, where))
        return
    if message.get("object") == "response":
        yield ImportedMessage(_response(message), _turn(source, extra))
        return
    plain = {k: v for k, v in message.items() if k not in {"extra", "type"}}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_part(part) for part in plain["content"]]
    if "thinking_blocks" in plain:
        source.lose("thinking blocks", bool(plain.pop("thinking_blocks")))
    kept = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
    source.lose_keys("other fields", plain, (*kept, "refusal", "annotations", "index"))
    checked = source.message({k: plain[k] for k in kept if k in plain}, where)
    if role != "assistant":
        source.lose("raw outputs", "raw_output" in extra)
        yield ImportedMessage(checked)
        return
    yield ImportedMessage(checked, _turn(source, extra))


def _part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in {"input_text", "output_text"}:
        return {"type": "text", "text": part.get("text", "")}
    return part


def _response(message: dict[str, Any]) -> Message:
    texts, calls = [], []
    for item in message.get("output") or ():
        if item.get("type") == "message":
            texts += [part.get("text", "") for part in item.get("content") or ()]
        elif item.get("type") == "function_call":
            calls.append(call_of(item["name"], item["arguments"], item["call_id"]))
    found: Message = {"role": "assistant", "content": "".join(texts)}
    return found | ({"tool_calls": calls} if calls else {})


def _turn(source: Source, extra: dict[str, Any]) -> dict[str, Any]:
    source.lose("raw responses", bool(extra.get("response")))
    fields: dict[str, Any] = {}
    if extra.get("timestamp"):
        fields["started_at"] = float(extra["timestamp"])
    if extra.get("cost") is not None:
        fields["signals"] = {"cost_usd": extra["cost"]}
    return fields


FORMAT = Format(
    name="mini-swe-agent",
    about="mini-swe-agent's trajectory files, format 1 and 1.1",
    files=("*.traj.json",),
    read=_read,
    holds=frozenset({"developer messages", "images", "tool call ids", "reasoning", "start times"}),
    drops={
        "configuration": "configuration of agent, model and environment",
        "model stats": "totals of calls and cost",
        "raw responses": "the endpoint's responses in full",
        "raw outputs": "outputs of commands before they were put into a template",
        "thinking blocks": "Anthropic's thinking blocks",
        "other fields": "fields that another program added",
    },
    note=(
        "The files have no score. The exit status gives how the attempt ended; status and "
        "submission are labels of the session. The tool is always mini-swe-agent's bash."
    ),
)


def export_mini(export: Export, *, include: Include = "all") -> None:
    """Write ``SESSION/SESSION.traj.json`` in mini-swe-agent's format 1.1, one per attempt.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    write_documents(export, FORMAT, include, lambda name: f"{name}/{name}.traj.json", _document)


def _document(export: Export, track: Track) -> dict[str, Any]:
    entries = conversation(track)
    status = _exit_status(track.attempt.status)
    messages = [_message(export, entry) for entry in entries]
    labels = track.tree.record.labels
    exits = {"exit_status": status, "submission": labels.get("submission", "")}
    messages.append({"role": "exit", "content": status, "extra": exits})
    calls = sum(entry.turn is not None for entry in entries)
    cost = sum(one.turn.signals.get("cost_usd") or 0.0 for one in entries if one.turn is not None)
    model = track.leaf.policy.partition(":")[2] or track.leaf.policy
    return {
        "info": {
            "model_stats": {"instance_cost": cost, "api_calls": calls},
            "config": {"agent": {}, "agent_type": "trajgym", "model": {"model_name": model}},
            "mini_version": labels.get("mini_version", ""),
            **exits,
        },
        "messages": messages,
        "trajectory_format": _VERSIONS[-1],
    }


def _exit_status(status: Status) -> str:
    if status.kind == "completed":
        return "Submitted"
    return "LimitsExceeded" if status.kind == "truncated" else str(status)


def _message(export: Export, entry: Entry) -> dict[str, Any]:
    kept = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
    message = {name: entry.message[name] for name in kept if name in entry.message}
    if "content" in message:
        message["content"] = content_of(export, entry.message)
    if entry.turn is None:
        return message
    extra: dict[str, Any] = {"actions": [_action(call) for call in tool_calls_of(message)]}
    if entry.turn.started_at:
        extra["timestamp"] = entry.turn.started_at
    if "cost_usd" in entry.turn.signals:
        extra["cost"] = entry.turn.signals["cost_usd"]
    return message | {"extra": extra}


def _action(call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = read_arguments(call["function"]["arguments"])
    except ValueError:
        arguments = None
    command = arguments.get("command") if isinstance(arguments, dict) else None
    text = command if isinstance(command, str) else call["function"]["arguments"]
    return {"command": text, "tool_call_id": call["id"]}
