"""Reading the rollouts that verifiers wrote before version 0.4: a line of results.jsonl each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    call_of,
    need,
    outcome_of,
    tools_of,
    turns_of,
)
from trajgym.adapters.interchange.formats.verifiers._ends import ended
from trajgym.trajectory import InvalidInput, Status

if TYPE_CHECKING:
    from trajgym.adapters.interchange._incoming import Source
    from trajgym.trajectory import Message

__all__ = ["read_result"]

_KEPT = {
    "example_id", "task", "prompt", "completion", "reward", "answer", "info", "error",
    "error_chain", "long_error_chain", "timing", "is_completed", "is_truncated", "metrics",
    "stop_condition", "tool_defs", "token_usage",
}  # fmt: skip
_MESSAGE = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


def read_result(source: Source, line: dict[str, Any], where: str) -> Draft:
    """Return the session of a rollout."""
    meta = _metadata(where)
    env = meta.get("env_id") or line.get("task") or "verifiers"
    metrics = line.get("metrics") or {}
    prompt = _messages(source, line.get("prompt"), "user", where)
    completion = _messages(source, line.get("completion"), "assistant", where)
    data = {name: line[name] for name in ("answer", "info") if line.get(name)}
    draft = Draft(
        task=f"{env}/{line.get('example_id', 0)}",
        turns=turns_of(
            [
                *(ImportedMessage(one) for one in prompt),
                *(ImportedMessage(one, _turn(one)) for one in completion),
            ],
            policy=f"imported:{meta.get('model') or 'unknown'}",
        ),
        prompt=line["prompt"] if isinstance(line.get("prompt"), str) else None,
        data=data,
        env={"id": str(env), "config": meta.get("env_args") or {}},
        tools=tools_of(line.get("tool_defs"), where),
    )
    if not draft.turns:
        raise InvalidInput(f"{where}: the completion has no answer")
    draft.status, draft.cause, draft.error = _ended(line)
    if draft.status.scored and line.get("reward") is not None:
        details = {"metrics": metrics} if metrics else {}
        draft.outcome = outcome_of(line["reward"], where, details)
    source.lose_keys("other fields", line, _KEPT | set(metrics))
    source.lose("bounds", bool(line.get("timing")))
    source.lose("other calls", bool(line.get("token_usage")))
    return draft


def _turn(message: Message) -> dict[str, Any] | None:
    return {} if message["role"] == "assistant" else None


def _metadata(where: str) -> dict[str, Any]:
    """Return what metadata.json beside the file has."""
    file = Path(where.rpartition(":")[0]).with_name("metadata.json")
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise InvalidInput(f"{file}: not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _ended(line: dict[str, Any]) -> tuple[Status, str, str]:
    error = line.get("error")
    if not error:
        return ended(line)
    if isinstance(error, str):
        return Status("failed", "env"), error, ""
    return Status("failed", "env"), error["error_chain_repr"], error["error_chain_str"]


def _messages(source: Source, messages: Any, role: str, where: str) -> list[Message]:
    if messages is None:
        return []
    if isinstance(messages, str):
        return [{"role": role, "content": messages}]
    if not isinstance(messages, list):
        raise InvalidInput(f"{where}: messages are {type(messages).__name__}; expected a list")
    return [_message(source, one, where) for one in messages]


def _message(source: Source, message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise InvalidInput(f"{where}: a message is {type(message).__name__}; expected an object")
    source.lose("provider state", bool(message.get("thinking_blocks")))
    kept = {key: message[key] for key in _MESSAGE if message.get(key) is not None}
    if calls := kept.get("tool_calls"):
        kept["tool_calls"] = [_call(one, where) for one in calls]
    return source.message(kept, where)


def _call(call: Any, where: str) -> dict[str, Any]:
    """Return a call in chat form; verifiers writes each as JSON in a string."""
    plain = json.loads(call) if isinstance(call, str) else call
    function = plain.get("function") or plain
    name = need(function, "name", str, where)
    return call_of(name, function.get("arguments") or "", plain.get("id") or "")
