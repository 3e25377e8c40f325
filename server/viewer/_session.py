"""A session as JSON for the page: every turn, with long texts shortened."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trajgym.server.viewer._marks import area_after, marks_of
from trajgym.trajectory import attempt_turns, blob_hashes, tool_calls_of
from trajgym.trajectory._internal import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.trajectory import Attempt, Message, Run, SessionTree, Turn

__all__ = ["LONG", "describe_session", "describe_turn", "stored_values", "turn_digest"]

LONG = 12_000
"""Longest text (characters) that is sent whole with a session."""
_KEPT = (8_000, 3_000)
"""Characters at the start and at the end of a longer one that are sent."""
_MOST_SIGNALS = 4_000


def describe_session(run: Run, tree: SessionTree, *, longest: int | None = LONG) -> dict[str, Any]:
    """Return a session with its turns, attempts and the values that derivers stored.

    Args:
        run: the run that it is from.
        tree: the session.
        longest: longest text that is not shortened; None shortens nothing.
    """
    record = tree.record
    task = run.task(record.task)
    return {
        "id": record.id,
        "task": record.task,
        "task_data": None if task is None else _bounded(task.data),
        "env": record.env_id,
        "group": record.group,
        "grouped": record.group is not None and run.group(record.group) is not None,
        "sample": record.sample,
        "seed": record.seed,
        "labels": record.labels,
        "budgets": record.budgets,
        "tools": [str((t.get("function") or {}).get("name", "")) for t in record.tools],
        "created": record.created_at,
        "attempts": [_attempt(tree, attempt) for attempt in tree.attempts],
        "turns": [describe_turn(turn, longest=longest) for turn in tree.turns],
        "stored": stored_values(run, record.id),
        "scorings": {
            name: {str(attempt): asdict(outcome) for attempt, outcome in found.items()}
            for name, found in run.outcomes(record.id).items()
        },
    }


def stored_values(run: Run, session: str) -> dict[str, Any]:
    """Return the values that `trajgym reward` stored for a session, by name."""
    return {name: json.loads(body) for name, body in run.derived(session).items()}


def _attempt(tree: SessionTree, attempt: Attempt) -> dict[str, Any]:
    outcome = attempt.outcome
    users = {t.index for t in tree.turns if t.simulated and t.attempt == attempt.index}
    return {
        "number": attempt.index,
        "forked_at": attempt.forked_at,
        "leaf": attempt.leaf,
        "status": str(attempt.status),
        "cause": attempt.cause,
        "error": attempt.error[-LONG:],
        "score": None if outcome is None else outcome.score,
        "passed": outcome is not None and outcome.passed,
        "details": None if outcome is None else _bounded(outcome.details),
        "ended": attempt.ended_at,
        "path": sorted({*attempt_turns(tree, attempt), *users}),
    }


def describe_turn(turn: Turn, *, longest: int | None = LONG) -> dict[str, Any]:
    """Return a turn without its token ids."""
    marks, screen = marks_of(turn)
    return {
        "index": turn.index,
        "parent": turn.parent,
        "edge": turn.edge,
        "attempt": turn.attempt,
        "agent": turn.agent,
        "role": turn.role,
        "role_reason": turn.role_reason,
        "kept": turn.kept,
        "context": [_message(m, longest) for m in turn.context],
        "message": _message(turn.message, longest),
        "observation": [_message(m, longest) for m in turn.observation],
        "calls": [asdict(call) for call in turn.calls],
        "reward": turn.reward,
        "done": turn.done,
        "signals": _bounded(turn.signals),
        "finish": turn.finish,
        "policy": turn.policy,
        "synthetic": turn.synthetic,
        "delivery": turn.delivery,
        "usage": None if turn.usage is None else asdict(turn.usage),
        "sampling": None if turn.sampling is None else asdict(turn.sampling),
        "started": turn.started_at,
        "policy_seconds": turn.policy_seconds,
        "env_seconds": turn.env_seconds,
        "returns": turn.returns,
        "rule": "" if turn.wire is None else turn.wire.rule,
        "tokens": _token_counts(turn),
        "marks": [{"points": m.points, "label": m.label, "area": m.area} for m in marks],
        "screen": screen,
        "area": area_after(turn),
    }


def turn_digest(turn: Turn) -> str:
    """Return a digest of what was done and what followed, without ids of calls."""
    done = [
        turn.message.get("content"),
        turn.message.get("reasoning_content"),
        *((c["function"]["name"], c["function"]["arguments"]) for c in tool_calls_of(turn.message)),
    ]
    seen = [(m.get("role"), m.get("content")) for m in turn.observation]
    return digest([{"done": done, "seen": seen}])[:12]


def _token_counts(turn: Turn) -> dict[str, Any] | None:
    tokens = turn.tokens
    if tokens is None:
        return None
    sampled = [segment for segment in tokens.segments if segment.sampled]
    mask = tokens.sampled_mask
    return {
        "prompt": tokens.prompt_kept + int(tokens.prompt_ids.size),
        "response": int(tokens.response_ids.size),
        "inserted": int(tokens.response_ids.size - mask.sum()),
        "low": min((s.version_low for s in sampled), default=-1),
        "high": max((s.version_high for s in sampled), default=-1),
        "logprob": float(tokens.logprobs[mask].mean()) if mask.any() else None,
    }


def _message(message: Message, longest: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": str(message.get("role")),
        "parts": list(_parts(message, longest)),
    }
    if reasoning := message.get("reasoning_content"):
        found["reasoning"] = _shortened(str(reasoning), longest)
    if calls := tool_calls_of(message):
        found["calls"] = [
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "arguments": _shortened(call["function"]["arguments"], longest),
            }
            for call in calls
        ]
    if call_id := message.get("tool_call_id"):
        found["call_id"] = str(call_id)
    return found


def _parts(message: Message, longest: int | None) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if content is None:
        return
    if isinstance(content, str):
        if content:
            yield _shortened(content, longest)
        return
    for part in content:
        if part.get("type") == "text":
            yield _shortened(str(part.get("text", "")), longest)
        elif hashes := list(blob_hashes([{"content": [part]}])):
            yield {"image": hashes[0]}
        else:
            yield {"other": str(part.get("type"))}


def _shortened(text: str, longest: int | None) -> dict[str, Any]:
    if longest is None or len(text) <= longest:
        return {"text": text}
    first, last = _KEPT
    return {"text": text[:first], "end": text[-last:], "cut": len(text) - first - last}


def _bounded(value: Any) -> Any:
    """Return a JSON value, or the start of its text if it is large."""
    text = json.dumps(value, default=str)
    return value if len(text) <= _MOST_SIGNALS else f"{text[:_MOST_SIGNALS]} ..."
