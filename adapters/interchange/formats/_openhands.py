"""OpenHands' conversations: a directory with base_state.json and a file for each event."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trajgym.adapters.interchange._format import Format
from trajgym.adapters.interchange._incoming import (
    Draft,
    ImportedMessage,
    call_of,
    need,
    turns_of,
)
from trajgym.adapters.interchange.formats._openai_chat import opening_id
from trajgym.trajectory import CallResult, InvalidInput, Status, text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.adapters.interchange._incoming import Source
    from trajgym.trajectory import Message, Turn

__all__ = ["FORMAT"]

_EVENT = re.compile(r"event-(\d{5,})-[0-9a-fA-F-]+\.json")
_ROOT = "__root__"
_UNFINISHED = {"idle", "running", "paused", "waiting_for_confirmation", "deleting"}


def _read(source: Source) -> Iterator[Draft]:
    for path, state in source.json():
        events = _active(source, state, _events(path.parent / "events"))
        yield _draft(source, path, state, events)


def _events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a conversation in the order in which they were appended."""
    found = []
    for path in folder.glob("event-*.json"):
        if not (name := _EVENT.fullmatch(path.name)):
            continue
        try:
            event = json.loads(path.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"{path}: not JSON: {error}") from error
        if not isinstance(event, dict):
            raise InvalidInput(f"{path}: an event is {type(event).__name__}; expected an object")
        for key in ("id", "kind"):
            need(event, key, str, str(path))
        found.append((int(name[1]), event))
    if not found:
        raise InvalidInput(f"{folder}: no event-*.json here, which base_state.json needs")
    return [event for _, event in sorted(found, key=lambda one: one[0])]


def _active(
    source: Source, state: dict[str, Any], events: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the events from the root to the conversation's current one.

    Events of versions without a tree follow the one before them.
    """
    places = {event["id"]: place for place, event in enumerate(events)}
    place: int | None = places.get(state.get("leaf_event_id"), len(events) - 1)
    chain: list[dict[str, Any]] = []
    while place is not None:
        event = events[place]
        chain.append(event)
        parent = event.get("parent_id")
        if parent is None:
            place = place - 1 if place else None
        else:
            above = places.get(parent)
            place = above if parent != _ROOT and above is not None and above < place else None
    source.lose("branches", len(chain) < len(events))
    return chain[::-1]


def _draft(
    source: Source, path: Path, state: dict[str, Any], events: list[dict[str, Any]]
) -> Draft:
    reader = _Reader(source, str(path), state)
    for event in events:
        reader.add(event)
    turns = reader.turns()
    if not turns:
        raise InvalidInput(f"{path}: no answer of the agent in {len(events)} events")
    opening = [ImportedMessage(one) for one in turns[0].context]
    users = [text_of(one.message) for one in opening if one.message["role"] == "user"]
    source.lose("configuration", bool(state.get("agent")))
    source.lose("statistics", bool((state.get("stats") or {}).get("usage_to_metrics")))
    status, cause = _ended(state, reader.failure)
    return Draft(
        task=opening_id("openhands", opening),
        turns=turns,
        prompt=users[0] if users else None,
        session=str(state.get("id") or path.parent.name),
        status=status,
        cause=cause,
        started=_seconds(events[0]),
        ended=_seconds(events[-1]) or None,
    )


def _ended(state: dict[str, Any], failure: dict[str, Any] | None) -> tuple[Status, str]:
    end = str(state.get("execution_status") or state.get("agent_status") or "")
    if end == "error" and failure is not None:
        cause = f"{failure.get('code')}: {failure.get('detail')}"
        if failure.get("code") == "MaxIterationsReached":
            return Status("truncated", "turns"), cause
        return Status("failed", "agent"), cause
    if end == "finished":
        return Status("completed"), ""
    if end in _UNFINISHED or not end:
        return Status("interrupted"), f"the conversation is {end or 'without a status'}"
    return Status("failed", "agent"), f"the conversation ended with status {end}"


@dataclass(slots=True)
class _Answer:
    """An answer of the agent, what it was shown, and what followed it."""

    message: Message
    event: dict[str, Any]
    shown: list[Message]
    kept: int | None = None
    context: list[Message] = field(default_factory=list)
    observation: list[Message] = field(default_factory=list)


class _Reader:
    """Follows what the model is shown, event by event: condensations remove parts of it."""

    def __init__(self, source: Source, where: str, state: dict[str, Any]) -> None:
        self.failure: dict[str, Any] | None = None
        self._source, self._where = source, where
        self._model = ((state.get("agent") or {}).get("llm") or {}).get("model") or "unknown"
        self._view: list[tuple[str, Message]] = []
        self._answers: list[_Answer] = []
        self._response = ""
        self._results: dict[str, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Apply an event."""
        kind = event["kind"]
        reads = {
            "SystemPromptEvent": self._system,
            "MessageEvent": self._message,
            "ActionEvent": self._action,
            "ObservationEvent": self._observation,
            "AgentErrorEvent": self._error,
            "UserRejectObservation": self._rejection,
            "Condensation": self._condensation,
        }
        if kind == "ConversationErrorEvent":
            self.failure = event
        elif kind == "TokenEvent":
            self._source.lose("ids")
        elif kind in reads:
            reads[kind](event)
        else:
            self._source.lose("other events")

    def turns(self) -> list[Turn]:
        """Return a turn for each answer."""
        self._settle()
        turns: list[Turn] = []
        for index, answer in enumerate(self._answers):
            fields = {
                "policy": f"imported:{self._model}",
                "started_at": _seconds(answer.event),
                "kept": answer.kept,
                "edge": "continue" if answer.kept is None else "rewrite",
                "context": answer.context,
                "calls": self._calls(answer),
            }
            observed = [ImportedMessage(one) for one in answer.observation]
            parent = index - 1 if index else None
            turns += turns_of(
                [ImportedMessage(answer.message, fields), *observed], start=index, parent=parent
            )
        return turns

    def _calls(self, answer: _Answer) -> list[CallResult]:
        return [
            CallResult(
                call_id=call["id"],
                name=call["function"]["name"],
                status=self._results.get(call["id"], "not_executed"),  # type: ignore[arg-type]
            )
            for call in tool_calls_of(answer.message)
        ]

    def _show(self, event: dict[str, Any], message: Message) -> None:
        where = f"{self._where}: event {event['id']}"
        self._view.append((event["id"], self._source.message(message, where)))

    def _settle(self) -> None:
        """Take what came since the last answer as its observation."""
        if not self._answers:
            return
        last, view = self._answers[-1], [one for _, one in self._view]
        if _shared(last.shown, view) == len(last.shown):
            last.observation += view[len(last.shown) :]
            last.shown = view

    def _answer(self, event: dict[str, Any], message: Message) -> None:
        """Add an answer, and compare what it was shown with what the one before it was."""
        self._settle()
        view = [one for _, one in self._view]
        self._show(event, message)
        answer = _Answer(self._view[-1][1], event, [one for _, one in self._view])
        if not self._answers:
            answer.context = view
        elif (shared := _shared(before := self._answers[-1].shown, view)) < len(before):
            answer.kept, answer.context = shared, view[shared:]
        self._answers.append(answer)

    def _system(self, event: dict[str, Any]) -> None:
        parts = [event["system_prompt"], event.get("dynamic_context")]
        self._source.lose("tools", bool(event.get("tools")))
        self._show(event, {"role": "system", "content": self._content(filter(None, parts))})

    def _message(self, event: dict[str, Any]) -> None:
        found = need(event, "llm_message", dict, f"{self._where}: event {event['id']}")
        parts = [*(found.get("content") or ()), *(event.get("extended_content") or ())]
        message = {"role": found["role"], "content": self._content(parts)}
        message |= self._reasoning(found)
        if calls := found.get("tool_calls"):
            message["tool_calls"] = [_call(one) for one in calls]
        if event.get("source") == "agent" and found["role"] == "assistant":
            self._answer(event, message)
        else:
            self._show(event, message)

    def _action(self, event: dict[str, Any]) -> None:
        """Add an answer with a call, or another call of the answer before it."""
        call = _call(need(event, "tool_call", dict, f"{self._where}: event {event['id']}"))
        response = event.get("llm_response_id") or event["id"]
        if response == self._response and self._answers:
            message = self._answers[-1].message
            message["tool_calls"] = [*tool_calls_of(message), call]
            return
        self._response = response
        message = {"role": "assistant", "content": self._content(event.get("thought") or ())}
        self._answer(event, message | self._reasoning(event) | {"tool_calls": [call]})

    def _reasoning(self, found: dict[str, Any]) -> Message:
        opaque = found.get("thinking_blocks") or found.get("responses_reasoning_item")
        self._source.lose("thinking blocks", bool(opaque))
        text = found.get("reasoning_content")
        return {"reasoning_content": text} if text else {}

    def _observation(self, event: dict[str, Any]) -> None:
        found = need(event, "observation", dict, f"{self._where}: event {event['id']}")
        self._source.lose_keys("observations", found, ("content", "is_error", "kind"))
        parts = found.get("content") or ()
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        status = "error" if found.get("is_error") else "ok"
        self._result(event, status, [*parts, *(event.get("extended_content") or ())])

    def _error(self, event: dict[str, Any]) -> None:
        self._result(event, "error", [{"type": "text", "text": event.get("error") or ""}])

    def _rejection(self, event: dict[str, Any]) -> None:
        text = f"Action rejected: {event.get('rejection_reason')}"
        self._result(event, "not_executed", [{"type": "text", "text": text}])

    def _result(self, event: dict[str, Any], status: str, parts: list[dict[str, Any]]) -> None:
        call = need(event, "tool_call_id", str, f"{self._where}: event {event['id']}")
        self._results[call] = status
        message = {"role": "tool", "tool_call_id": call, "content": self._content(parts)}
        self._show(event, message)

    def _condensation(self, event: dict[str, Any]) -> None:
        """Remove events from the view, and insert their summary."""
        self._settle()
        forgotten = set(event.get("forgotten_event_ids") or ())
        self._view = [one for one in self._view if one[0] not in forgotten]
        place, summary = event.get("summary_offset"), event.get("summary")
        if summary is not None and place is not None:
            self._view.insert(place, (event["id"], {"role": "user", "content": summary}))

    def _content(self, parts: Any) -> Any:
        found: list[dict[str, Any]] = []
        for part in parts:
            if part.get("type") == "image":
                urls = part.get("image_urls") or ()
                found += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            else:
                found.append({"type": "text", "text": part.get("text") or ""})
        if len(found) == 1 and found[0]["type"] == "text":
            return found[0]["text"]
        return found or ""


def _shared(left: list[Message], right: list[Message]) -> int:
    """Return how many messages at the start are the same objects."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (a, b) in pairs if a is not b), min(len(left), len(right)))


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return call_of(call["name"], call.get("arguments") or "", call["id"])


def _seconds(event: dict[str, Any]) -> float:
    """Return an event's time; OpenHands writes local time without a zone."""
    try:
        return datetime.fromisoformat(event["timestamp"]).timestamp()
    except (KeyError, ValueError):
        return 0.0


FORMAT = Format(
    name="openhands",
    about="OpenHands' conversations (agent SDK 1.x): base_state.json and events/",
    files=("base_state.json",),
    read=_read,
    writes=False,
    drops={
        "branches": "events that are not on the conversation's current branch",
        "configuration": "configuration of agent, model and workspace",
        "statistics": "totals of calls, tokens and cost",
        "tools": "the agent's tools: the files have no schemas of their arguments",
        "observations": "what tools observed besides text and images (exit codes, paths)",
        "thinking blocks": "a provider's own reasoning items",
        "ids": "ids of prompts and responses, which have no log-probs",
        "other events": "changes of state, hooks, pauses and logs of completions",
    },
    note=(
        "Calls of one response are one answer. A condensation is a rewrite of the context. "
        "Some tools show the model more than the text in the file, such as the exit code. The "
        "files have no score. There is no export: each result has the type of a tool's package."
    ),
)
