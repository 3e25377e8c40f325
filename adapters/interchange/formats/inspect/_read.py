"""Reading Inspect's logs: ``.eval`` archives and ``.json`` files."""

from __future__ import annotations

import json
import zipfile
from datetime import datetime
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
from trajgym.adapters.interchange._own import OWN, restore_session, restored_turn
from trajgym.trajectory import InvalidInput, Sampling, Status, Usage, tool_calls_of
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.adapters.interchange._incoming import Source
    from trajgym.trajectory import Message, Outcome

__all__ = ["read_inspect"]

_ZSTANDARD = 93
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's letters: correct, incorrect, partially correct, no answer."""
_ATTACHMENT = "attachment://"


def read_inspect(source: Source) -> Iterator[Draft]:
    for path in source.paths:
        for where, header, sample in _samples(path):
            source.lose("log", bool(header.get("plan") or header.get("results")))
            yield _Sample(source, where, header, sample).draft()


def _samples(path: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the log's header and each of its samples, one in memory at a time."""
    if path.suffix == ".json":
        log = json.loads(path.read_bytes())
        for sample in log.get("samples") or ():
            yield f"{path}: sample {sample.get('id')}", log, sample
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            head = "header.json" if "header.json" in names else "_journal/start.json"
            header = json.loads(_member(archive, head))
            for name in names:
                if name.startswith("samples/") and name.endswith(".json"):
                    yield f"{path}: {name}", header, json.loads(_member(archive, name))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InvalidInput(f"{path}: not a log of Inspect: {error}") from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member of the archive; newer logs use Zstandard, which Python 3.13 can't read.

    Raises:
        MissingExtra: it is compressed with Zstandard, and no package can decompress it.
    """
    info = archive.getinfo(name)
    if info.compress_type != _ZSTANDARD:
        return archive.read(name)
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtra("zstandard", "inspect") from error
    file = archive.fp
    assert file is not None
    file.seek(info.header_offset)
    local = file.read(30)
    skipped = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    file.seek(info.header_offset + 30 + skipped)
    packed = file.read(info.compress_size)
    reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
    found: bytes = reader.read()
    return found


class _Sample:
    def __init__(
        self, source: Source, where: str, header: dict[str, Any], sample: dict[str, Any]
    ) -> None:
        self._source, self._where, self._sample = source, where, sample
        self._eval = header.get("eval") or {}
        self._attachments = sample.get("attachments") or {}
        self._calls = {
            message["id"]: event
            for event in sample.get("events") or ()
            if event.get("event") == "model" and (message := _answer(event)).get("id")
        }

    def draft(self) -> Draft:
        sample = self._sample
        model = self._eval.get("model") or "unknown"
        messages = [self._message_of(one) for one in need(sample, "messages", list, self._where)]
        metadata = sample.get("metadata") or {}
        data = {"target": sample.get("target"), "choices": sample.get("choices")}
        data["metadata"] = {key: value for key, value in metadata.items() if key != OWN}
        first = sample.get("input")
        draft = Draft(
            task=f"{self._eval.get('task', 'inspect')}/{sample.get('id')}",
            prompt=self._resolved(first) if isinstance(first, str) else None,
            data={key: value for key, value in data.items() if value},
            turns=turns_of(messages, policy=f"imported:{model}"),
            session=sample.get("uuid") or "",
            tools=self._tools(),
            labels={"model": model},
        )
        if started := sample.get("started_at"):
            draft.started = _seconds(started)
        if completed := sample.get("completed_at"):
            draft.ended = _seconds(completed)
        self._end(draft)
        self._note_losses()
        if OWN in metadata:
            restore_session(draft, metadata[OWN])
        return draft

    def _tools(self) -> list[dict[str, Any]]:
        """Return the tools of the last call of the model, which has all that were offered."""
        offered = [event.get("tools") for event in self._calls.values() if event.get("tools")]
        keep = ("name", "description", "parameters")
        tools = [{key: tool[key] for key in keep if key in tool} for tool in (offered or [[]])[-1]]
        return tools_of(tools, self._where)

    def _end(self, draft: Draft) -> None:
        if error := self._sample.get("error"):
            draft.status = Status("failed", "env")
            draft.cause = str(error.get("message", ""))[:500]
            draft.error = error.get("traceback") or ""
            return
        if limit := self._sample.get("limit"):
            draft.status = Status("truncated", str(limit.get("type") or "limit"))
            draft.cause = f"limit of {limit.get('limit')}"
        draft.outcome = self._outcome()
        if not draft.turns:
            draft.status, draft.outcome = Status("interrupted"), None
            draft.cause = "the sample has no answer of the model"

    def _outcome(self) -> Outcome | None:
        scores: dict[str, Any] = self._sample.get("scores") or {}
        for name, score in scores.items():
            value = score.get("value")
            number = _GRADES.get(value, value) if isinstance(value, str) else value
            if isinstance(number, bool | int | float):
                return outcome_of(number, f"{self._where}: score {name}", {"scores": scores})
        self._source.lose("scores", bool(scores))
        return None

    def _note_losses(self) -> None:
        source, sample = self._source, self._sample
        other = [one for one in sample.get("events") or () if one.get("event") != "model"]
        source.lose("events", bool(other))
        source.lose("store", bool(sample.get("store")))
        source.lose("retries", bool(sample.get("error_retries")))
        choices = [one.get("output", {}).get("choices") or [{}] for one in self._calls.values()]
        source.lose("log-probs", any(one[0].get("logprobs") for one in choices))

    def _message_of(self, message: dict[str, Any]) -> ImportedMessage:
        own = (message.get("metadata") or {}).get(OWN) or {}
        role = own.get("role", message.get("role"))
        content, thought = self._content(message.get("content"))
        plain: Message = {"role": role, "content": content}
        if role == "tool":
            plain["tool_call_id"] = message.get("tool_call_id") or ""
            if error := message.get("error"):
                self._source.lose("tool errors")
                plain["content"] = content or str(error.get("message", ""))
        if thought:
            plain["reasoning_content"] = thought
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = [
                call_of(call["function"], call.get("arguments") or {}, call["id"]) for call in calls
            ]
        checked = self._source.message(plain, self._where)
        for call, text in zip(tool_calls_of(checked), own.get("arguments") or (), strict=False):
            call["function"]["arguments"] = text
        self._source.lose("metadata", bool(set(message.get("metadata") or {}) - {OWN}))
        if role != "assistant" or own.get("context"):
            return ImportedMessage(checked)
        turn = restored_turn(own["turn"]) if "turn" in own else self._turn(message.get("id"))
        return ImportedMessage(checked, turn)

    def _content(self, content: Any) -> tuple[Any, str]:
        """Return a message's content, and its reasoning."""
        if not isinstance(content, list):
            return self._resolved(str(content or "")), ""
        thoughts = [one.get("reasoning", "") for one in content if one.get("type") == "reasoning"]
        parts = [self._part(one) for one in content if one.get("type") != "reasoning"]
        thought = self._resolved("\n".join(thoughts))
        if all(one["type"] == "text" for one in parts):
            return "".join(one["text"] for one in parts), thought
        return parts, thought

    def _part(self, part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") == "text":
            return {"type": "text", "text": self._resolved(part.get("text", ""))}
        if part.get("type") == "image":
            return self._source.image_url(self._resolved(part.get("image", "")), self._where)
        self._source.lose("other media")
        return {"type": "text", "text": f"[{part.get('type')}]"}

    def _resolved(self, text: str) -> str:
        if not text.startswith(_ATTACHMENT):
            return text
        found = self._attachments.get(text[len(_ATTACHMENT) :])
        if found is None:
            raise InvalidInput(f"{self._where}: the log lacks {text}")
        return str(found)

    def _turn(self, message: str | None) -> dict[str, Any]:
        event = self._calls.get(message or "")
        if event is None:
            return {}
        output, config = event.get("output") or {}, event.get("config") or {}
        fields: dict[str, Any] = {"policy": f"imported:{output.get('model') or event.get('model')}"}
        if usage := output.get("usage"):
            cached = usage.get("input_tokens_cache_read") or 0
            fields["usage"] = Usage(
                prompt_tokens=(usage.get("input_tokens") or 0) + cached,
                completion_tokens=usage.get("output_tokens") or 0,
                reasoning_tokens=usage.get("reasoning_tokens") or 0,
                cached_tokens=cached,
            )
        names = ("temperature", "top_p", "top_k", "max_tokens", "seed")
        if any(config.get(name) is not None for name in names):
            chosen: dict[str, Any] = {name: config.get(name) for name in names}
            fields["sampling"] = Sampling(**chosen)
        reason = (output.get("choices") or [{}])[0].get("stop_reason")
        fields["finish"] = {"max_tokens": "length", "model_length": "length"}.get(reason, reason)
        if event.get("timestamp"):
            fields["started_at"] = _seconds(event["timestamp"])
        if output.get("time"):
            fields["policy_seconds"] = float(output["time"])
        return {key: value for key, value in fields.items() if value is not None}


def _answer(event: dict[str, Any]) -> dict[str, Any]:
    choices = (event.get("output") or {}).get("choices") or [{}]
    found: dict[str, Any] = choices[0].get("message") or {}
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
