"""Writing Inspect's ``.eval`` logs."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from trajgym.adapters.exports._conversation import read_arguments
from trajgym.adapters.interchange._outgoing import conversation, data_url, file_name, tracks
from trajgym.adapters.interchange._own import OWN, own_session, own_turn
from trajgym.adapters.interchange.formats.inspect._format import FORMAT
from trajgym.trajectory import InvalidInput, tool_calls_of

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.adapters.exports._stream import Export
    from trajgym.adapters.interchange._outgoing import Entry, Include, Track
    from trajgym.trajectory import Message

__all__ = ["export_inspect"]


def export_inspect(export: Export, *, include: Include = "all") -> None:
    """Write one ``ENV.eval`` per environment, Inspect's log: a sample for each attempt.

    Args:
        export: what to write.
        include: ``all`` attempts with turns, ``scored`` or ``passed`` ones.
    """
    logs: dict[str, _Log] = {}
    try:
        for track in tracks(export, FORMAT, include):
            env = track.tree.record.env_id
            if env not in logs:
                logs[env] = _Log(export.out / f"{_free_name(logs, env)}.eval", env)
            try:
                logs[env].add(export, track)
            except InvalidInput as error:
                export.report.drop(track.tree.record.id, track.attempt.index, str(error))
            else:
                export.report.count(synthetic=track.leaf.synthetic)
        for log in logs.values():
            log.finish()
            export.report.files.append(log.path)
    finally:
        for log in logs.values():
            log.close()


def _free_name(logs: dict[str, _Log], env: str) -> str:
    taken = {log.path.stem for log in logs.values()}
    name = file_name(env)
    return name if name not in taken else f"{name}-{len(taken)}"


class _Log:
    """One archive, written sample by sample; it appears once it is complete."""

    def __init__(self, path: Path, env: str) -> None:
        self.path = path
        self._env = env
        self._part = path.with_name(f".{path.name}.part")
        self._zip = zipfile.ZipFile(self._part, "w", zipfile.ZIP_DEFLATED)
        self._epochs: dict[str, int] = {}
        self._summaries: list[dict[str, Any]] = []
        self._model = ""
        self._created = datetime.now(UTC).isoformat(timespec="seconds")

    def add(self, export: Export, track: Track) -> None:
        """Write an attempt as a sample; the attempts of a task are its epochs."""
        task = track.tree.record.task
        epoch = self._epochs.get(task, 0) + 1
        model = track.leaf.policy.partition(":")[2] or track.leaf.policy or "unknown"
        sample = _sample_of(export, track, epoch, model)
        data = json.dumps(sample, ensure_ascii=False, allow_nan=False)
        self._epochs[task] = epoch
        self._model = self._model or model
        self._zip.writestr(f"samples/{file_name(task)}_epoch_{epoch}.json", data)
        keys = ("id", "epoch", "input", "target", "scores", "started_at", "completed_at")
        summary = {key: sample[key] for key in keys if key in sample}
        self._summaries.append(summary | {"completed": True})

    def finish(self) -> None:
        """Write the header and put the archive in place."""
        header = self._header()
        start = {key: header[key] for key in ("version", "eval", "plan")}
        self._zip.writestr("_journal/start.json", json.dumps(start))
        self._zip.writestr("summaries.json", json.dumps(self._summaries))
        self._zip.writestr("header.json", json.dumps(header))
        self._zip.close()
        self._part.replace(self.path)

    def _header(self) -> dict[str, Any]:
        ids = list(self._epochs)
        return {
            "version": 2,
            "status": "success",
            "eval": {
                "created": self._created,
                "task": self._env,
                "dataset": {"samples": len(ids), "sample_ids": ids},
                "model": self._model or "unknown",
                "config": {"epochs": max(self._epochs.values(), default=1)},
                "packages": {"trajgym": version("trajgym")},
            },
            "plan": {"name": "plan", "steps": [], "config": {}},
            "results": {"total_samples": len(ids), "completed_samples": len(ids), "scores": []},
            "stats": {"started_at": self._created, "completed_at": self._created},
        }

    def close(self) -> None:
        """Release the file, and remove it if it is not complete."""
        self._zip.close()
        self._part.unlink(missing_ok=True)


def _sample_of(export: Export, track: Track, epoch: int, model: str) -> dict[str, Any]:
    entries = conversation(track)
    messages = [
        _message(export, entry, f"{track.id}-{number}", model)
        for number, entry in enumerate(entries)
    ]
    record, attempt, task = track.tree.record, track.attempt, track.task
    data = {} if task is None else task.data
    target = data.get("target", data.get("answer", ""))
    first = next((one["content"] for one in messages if one["role"] == "user"), "")
    sample: dict[str, Any] = {
        "id": record.task,
        "epoch": epoch,
        "input": first if isinstance(first, str) else json.dumps(first),
        "target": target if isinstance(target, str) else json.dumps(target),
        "messages": messages,
        "output": _output(messages, model),
        "scores": {},
        "metadata": {OWN: own_session(track)},
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
        "uuid": track.id,
    }
    if attempt.outcome is not None:
        passed = "passed" if attempt.outcome.passed else "not passed"
        sample["scores"]["trajgym"] = {"value": attempt.outcome.score, "explanation": passed}
    if record.created_at:
        sample["started_at"] = datetime.fromtimestamp(record.created_at, UTC).isoformat()
    if attempt.ended_at:
        sample["completed_at"] = datetime.fromtimestamp(attempt.ended_at, UTC).isoformat()
    if attempt.status.kind == "truncated":
        kinds = {"turns": "turn", "tokens": "token", "seconds": "time", "cost": "cost"}
        kind = kinds.get(attempt.status.detail, "custom")
        sample["limit"] = {"type": kind, "limit": record.budgets.get(attempt.status.detail) or 0}
    if attempt.status.kind == "failed":
        text = f"{attempt.status}: {attempt.cause}"
        sample["error"] = {"message": text, "traceback": attempt.error, "traceback_ansi": ""}
    return sample


def _output(messages: list[dict[str, Any]], model: str) -> dict[str, Any]:
    last = [one for one in messages if one["role"] == "assistant"][-1]
    reason = "tool_calls" if last.get("tool_calls") else "stop"
    return {"model": model, "choices": [{"message": last, "stop_reason": reason}]}


def _message(export: Export, entry: Entry, name: str, model: str) -> dict[str, Any]:
    message, turn = entry
    role = message["role"]
    found: dict[str, Any] = {"id": name, "role": role}
    if role == "developer":  # a role that Inspect's messages lack
        found |= {"role": "system", "metadata": {OWN: {"role": role}}}
    found["content"] = _content_out(export, message)
    if role == "tool":
        found["tool_call_id"] = message.get("tool_call_id")
        return found
    if role != "assistant":
        return found | ({"source": "input"} if role == "user" else {})
    own: dict[str, Any] = {"context": True} if turn is None else {"turn": own_turn(turn)}
    if calls := tool_calls_of(message):
        found["tool_calls"] = [_call(call) for call in calls]
        own["arguments"] = [call["function"]["arguments"] for call in calls]
    return found | {"source": "generate", "model": model, "metadata": {OWN: own}}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = read_arguments(function["arguments"])
    except ValueError:
        arguments = None
    found = {"id": call["id"], "function": function["name"], "type": "function"}
    if isinstance(arguments, dict):
        return found | {"arguments": arguments}
    return found | {"arguments": {}, "parse_error": f"not a JSON object: {function['arguments']}"}


def _content_out(export: Export, message: Message) -> Any:
    content = message.get("content") or ""
    thought = message.get("reasoning_content")
    if isinstance(content, str) and not thought:
        return content
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    shown = [_part_out(export, part) for part in parts]
    return [{"type": "reasoning", "reasoning": thought}, *shown] if thought else shown


def _part_out(export: Export, part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part.get("text", "")}
    if part.get("type") != "image_url":
        raise InvalidInput(f"a {part.get('type')!r} part, which a log can't hold")
    return {"type": "image", "image": data_url(export, part["image_url"]["url"])}
