"""SWE-agent's ``.traj`` files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports._conversation import read_arguments
from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._incoming import Draft, ImportedMessage, turns_of
from trajgym.adapters.interchange._outgoing import (
    content_of,
    conversation,
    write_documents,
)
from trajgym.adapters.interchange.formats._limits import ended
from trajgym.trajectory import InvalidInput, Status, text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._incoming import Source
    from trajgym.adapters.interchange._outgoing import Entry, Include, Track
    from trajgym.trajectory import Message, Turn

__all__ = ["FORMAT", "export_swe_agent"]


def _read(source: Source) -> Iterator[Draft]:
    for path, document in source.json():
        where = str(path)
        history = document.get("history")
        steps = document.get("trajectory") or []  # demonstrations have a history only
        info = document.get("info") or {}
        if not isinstance(history, list):
            raise InvalidInput(f"{where}: 'history' is missing; expected SWE-agent's .traj file")
        messages = [_message_of(source, item, where) for item in history]
        policy = f"imported:{_model(document)}"
        turns = turns_of(messages, policy=policy)
        if not turns:
            raise InvalidInput(f"{where}: no answer of the model")
        _add_times(source, turns, steps)
        status, cause = ended(str(info.get("exit_status") or ""))
        source.lose("model stats", bool(info.get("model_stats")))
        source.lose("other attempts", bool(document.get("attempts")))
        source.lose("configuration", bool(document.get("replay_config")))
        kept = ("model_stats", "exit_status", "submission", "swe_agent_version")
        source.lose_keys("review", info, kept)
        labels = {name: info.get(name) for name in kept[1:]}
        user = next((one for one in messages if one.message["role"] == "user"), None)
        yield Draft(
            task=path.name.removesuffix(".traj"),
            prompt=None if user is None else text_of(user.message),
            turns=turns,
            status=status,
            cause=cause,
            labels={name: str(value) for name, value in labels.items() if value},
        )


def _model(document: dict[str, Any]) -> str:
    """Return the model's name from the configuration to replay the run, if there is one."""
    config = document.get("replay_config")
    try:
        found: Any = json.loads(config) if isinstance(config, str) else config
        return str(found["agent"]["model"]["name"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _message_of(source: Source, item: dict[str, Any], where: str) -> ImportedMessage:
    message: Message = {"role": item.get("role"), "content": item.get("content") or ""}
    if calls := item.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in calls]
    if ids := item.get("tool_call_ids"):
        message["tool_call_id"] = ids[0]
    blocks = item.get("thinking_blocks") or ()
    if thought := "".join(block.get("thinking", "") for block in blocks):
        message["reasoning_content"] = thought
    source.lose("thinking signatures", any("signature" in block for block in blocks))
    checked = source.message(message, where)
    answers = checked["role"] == "assistant" and not item.get("is_demo")
    return ImportedMessage(checked, {} if answers else None)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": text},
    }


def _add_times(source: Source, turns: list[Turn], steps: list[dict[str, Any]]) -> None:
    """Take the seconds from the steps, which follow the answers of the history in order."""
    left = iter(turns)
    for step in steps:
        source.lose("state", bool(step.get("state")))
        source.lose("queries", bool(step.get("query")))
        source.lose("extra", bool(step.get("extra_info")))
        response = str(step.get("response") or "").strip()
        turn = next((one for one in left if text_of(one.message).strip() == response), None)
        if turn is not None and step.get("execution_time"):
            turn.env_seconds = float(step["execution_time"])


FORMAT = Format(
    name="swe-agent",
    about="SWE-agent's .traj files (1.x, and 0.x without tool calls)",
    files=("*.traj",),
    read=_read,
    holds=frozenset({"developer messages", "images", "tool call ids", "reasoning"}),
    drops={
        "model stats": "totals of calls, tokens and cost",
        "state": "state of the shell after each step",
        "queries": "the exact input of each call, if history processors edited it",
        "extra": "extra_info of steps",
        "other attempts": "attempts of a retry agent that were not chosen",
        "configuration": "the configuration to replay the run",
        "review": "reviews, edited files and versions",
        "thinking signatures": "signatures of Anthropic's thinking blocks",
    },
    note=(
        "The files have no score and no tool schemas. The exit status gives how the attempt "
        "ended; status and submission are labels of the session. Demonstrations are context."
    ),
)


def export_swe_agent(export: Export, *, include: Include = "all") -> None:
    """Write ``SESSION/SESSION.traj`` in SWE-agent's format, one per attempt.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    write_documents(export, FORMAT, include, lambda name: f"{name}/{name}.traj", _document)


def _document(export: Export, track: Track) -> dict[str, Any]:
    entries = conversation(track)
    history = [_item(export, entry) for entry in entries]
    labels = track.tree.record.labels
    answers = [entry.turn for entry in entries if entry.turn is not None]
    ending = _exit_status(track.attempt.status)
    return {
        "trajectory": [_step(track, turn) for turn in answers],
        "history": history,
        "info": {
            "exit_status": ending,
            # SWE-agent's viewer requires a text of what was submitted.
            "submission": labels.get("submission", "" if ending == "submitted" else None),
            "model_stats": {
                "instance_cost": sum(one.signals.get("cost_usd") or 0.0 for one in answers),
                "tokens_sent": sum(one.usage.prompt_tokens for one in answers if one.usage),
                "tokens_received": sum(one.usage.completion_tokens for one in answers if one.usage),
                "api_calls": len(answers),
            },
        },
        "replay_config": json.dumps(
            {"agent": {"model": {"name": track.leaf.policy.partition(":")[2]}}}
        ),
        "environment": track.tree.record.env_id,
    }


def _exit_status(status: Status) -> str:
    if status.kind == "completed":
        return "submitted"
    known = {"seconds": "exit_total_execution_time", "tokens": "exit_context"}
    return known.get(status.detail, "exit_cost") if status.kind == "truncated" else str(status)


def _item(export: Export, entry: Entry) -> dict[str, Any]:
    message, turn = entry
    content = content_of(export, message) or ""
    item = {"role": message["role"], "content": content, "agent": "main"}
    if message["role"] == "system":
        return item | {"message_type": "system_prompt"}
    if message["role"] == "tool":
        return item | {"message_type": "observation", "tool_call_ids": [message["tool_call_id"]]}
    if turn is None:
        demo = {"is_demo": True} if message["role"] == "assistant" else {}
        return item | {"message_type": "observation"} | demo
    thought = message.get("reasoning_content")
    return item | {
        "message_type": "action",
        "thought": text_of(message),
        "action": _action(message),
        "tool_calls": tool_calls_of(message) or None,
        "thinking_blocks": [{"type": "thinking", "thinking": thought}] if thought else None,
    }


def _action(message: Message) -> str:
    """Return the calls as a command line, as SWE-agent's tools are called."""
    lines = []
    for call in tool_calls_of(message):
        function = call["function"]
        try:
            arguments = read_arguments(function["arguments"])
        except ValueError:
            arguments = function["arguments"]
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if function["name"] == "bash" and isinstance(command, str):
            lines.append(command)
        else:
            lines.append(f"{function['name']} {json.dumps(arguments, ensure_ascii=False)}")
    return "\n".join(lines)


def _step(track: Track, turn: Turn) -> dict[str, Any]:
    context = track.tree.context(turn)
    return {
        "action": _action(turn.message),
        "observation": "\n".join(text_of(one) for one in turn.observation),
        "response": text_of(turn.message),
        "thought": text_of(turn.message),
        "execution_time": turn.env_seconds,
        "state": {},
        "query": [{"role": one["role"], "content": text_of(one)} for one in context],
        "extra_info": {},
    }
