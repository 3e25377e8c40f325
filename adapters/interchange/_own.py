"""Our own part of a foreign file's metadata: what the format has no field for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import Attempt, SessionRecord, Turn
from trajgym.trajectory._codec import decode, to_jsonable

if TYPE_CHECKING:
    from trajgym.adapters.interchange._incoming import Draft
    from trajgym.adapters.interchange._outgoing import Track

__all__ = ["OWN", "own_session", "own_turn", "restore_session", "restored_turn"]

OWN = "trajgym"
"""Key of our part."""

_MESSAGES = {
    "index", "parent", "message", "context", "observation", "kept", "edge", "agent", "attempt",
    "tokens", "returns",
}  # fmt: skip


def own_session(track: Track) -> dict[str, Any]:
    """Return the records of an attempt's session and task."""
    return {
        "session": to_jsonable(track.tree.record),
        "attempt": to_jsonable(track.attempt),
        "task": None if track.task is None else to_jsonable(track.task),
    }


def own_turn(turn: Turn) -> dict[str, Any]:
    """Return the fields of a turn besides its place, messages and ids."""
    return {name: value for name, value in to_jsonable(turn).items() if name not in _MESSAGES}


def restored_turn(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that :func:`own_turn` wrote, as records.

    Raises:
        InvalidInput: they are malformed.
    """
    turn = decode(Turn, json.dumps(plain | {"index": 0, "parent": None, "message": {}}))
    return {name: getattr(turn, name) for name in plain}


def restore_session(draft: Draft, own: dict[str, Any]) -> None:
    """Fill a draft from what :func:`own_session` wrote.

    Raises:
        InvalidInput: it is malformed.
    """
    record = decode(SessionRecord, json.dumps(own.get("session")))
    attempt = decode(Attempt, json.dumps(own.get("attempt")))
    draft.session, draft.task, draft.env = record.id, record.task, record.env
    draft.seed, draft.budgets, draft.labels = record.seed, record.budgets, record.labels
    draft.started, draft.ended = record.created_at, attempt.ended_at
    draft.tools = record.tools
    draft.status, draft.cause, draft.error = attempt.status, attempt.cause, attempt.error
    draft.outcome = attempt.outcome
    task = own.get("task") or {}
    draft.prompt, draft.data = task.get("prompt"), task.get("data") or {}
    if attempt.index:
        draft.session = f"{record.id}-attempt-{attempt.index}"
