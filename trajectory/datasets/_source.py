"""Reading a run as units that are never divided: a group, or a session without one."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.trajectory._closing import Closing
from trajgym.trajectory._codec import decode
from trajgym.trajectory._database import TURN_BITS, has_writer
from trajgym.trajectory._errors import StoreLocked
from trajgym.trajectory._records import Task
from trajgym.trajectory._run import Run
from trajgym.trajectory.datasets._licences import task_licence

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from trajgym.trajectory._records import Attempt, SessionRecord
    from trajgym.trajectory._run import _Shard

__all__ = ["FIELDS", "GROUP_FIELDS", "Place", "SessionRows", "Source", "unit_of"]

GROUP_FIELDS = {
    "group_size": "number of sessions of the group",
    "solve_rate": "share of the group's scored attempts that passed; None if none was scored",
    "mean_score": "mean score of the group's scored attempts",
}
FIELDS = {
    "id": "id of the session",
    "task": "id of the task",
    "env": "id of the environment",
    "config": "configuration of the environment",
    "group": "id of the group, or None",
    "sample": "number of the sample in its group",
    "seed": "the environment's seed",
    "created_at": "Unix time (s)",
    "turns": "number of turns",
    "attempts": "number of attempts",
    "status": "how the first attempt ended, such as 'completed' or 'failed:env'",
    "cause": "what went wrong, or which limit ended the first attempt",
    "score": "score of the first attempt, or None",
    "passed": "whether the first attempt passed, or None",
    "labels": "the session's labels",
    "data": "the task's data",
    "prompt": "the task's prompt",
    "licence": "licence that the task's data states, or None",
    **GROUP_FIELDS,
}
"""Fields of expressions, and what they are."""

_TASK_FIELDS = {"data", "prompt", "licence"}


class Place(NamedTuple):
    """A session of a source."""

    shard: _Shard
    key: int
    record: SessionRecord


class SessionRows(NamedTuple):
    """Everything that is stored of a session beside its record."""

    turns: list[tuple[int, bytes, bytes | None]]
    """Index, body and tokens."""
    signals: list[tuple[int, str, bytes]]
    """Index of the turn, source and body."""
    attempts: list[tuple[int, int, bytes]]
    """Number, whether it is running, and body."""
    derived: list[tuple[str, bytes]]
    """Name and body."""


@dataclass(slots=True)
class _Group:
    size: int = 0
    scored: int = 0
    passed: int = 0
    score: float = 0.0


def unit_of(record: SessionRecord) -> str:
    """Return the id of the unit that a session belongs to."""
    return f"session {record.id}" if record.group is None else f"group {record.group}"


class Source(Closing):
    """A run that sessions are selected from. Nothing may be writing it.

    Args:
        path: of the run.

    Raises:
        StoreLocked: a process is writing it.
        StoreError: it can't be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.run = Run(path)
        self.path = self.run.path
        for file in self.run.files:
            if has_writer(file):
                self.close()
                raise StoreLocked(f"{file}: a process is writing this run; wait until it ends")
        self.shards = self.run._shards
        self.has_blobs = any(one.query("SELECT 1 FROM blobs LIMIT 1") for one in self.shards)
        self.task = lru_cache(maxsize=64)(self._task)

    def close(self) -> None:
        """Close the files."""
        self.run.close()

    def places(self) -> Iterator[Place]:
        """Yield every session, in the order in which they began, without turns."""
        for shard in self.shards:
            for key, record in shard.heads():
                yield Place(shard, key, record)

    def records(self, names: frozenset[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield every session with those fields that are named (and some others)."""
        groups = self._groups() if names & set(GROUP_FIELDS) else {}
        for place in self.places():
            record = place.record
            fields: dict[str, Any] = {
                "id": record.id,
                "task": record.task,
                "env": record.env.get("id"),
                "config": record.env.get("config", {}),
                "group": record.group,
                "sample": record.sample,
                "seed": record.seed,
                "created_at": record.created_at,
                "labels": record.labels,
            }
            if names & {"status", "cause", "score", "passed", "attempts"}:
                fields |= _ending(place.shard.attempts(place.key, turns=None))
            if "turns" in names:
                fields["turns"] = place.shard.count(place.key)
            if names & _TASK_FIELDS:
                task = self.task(record.task)
                fields["data"] = {} if task is None else task.data
                fields["prompt"] = None if task is None else task.prompt
                fields["licence"] = task_licence(task)
            if groups:
                one = groups[unit_of(record)]
                fields["group_size"] = one.size
                fields["solve_rate"] = one.passed / one.scored if one.scored else None
                fields["mean_score"] = one.score / one.scored if one.scored else None
            yield place, fields

    def rows(self, place: Place) -> SessionRows:
        """Return what is stored of a session."""
        shard, key, _ = place
        first, end = key << TURN_BITS, (key + 1) << TURN_BITS
        turns = shard.query(
            "SELECT key, body, tokens FROM turns WHERE key >= ? AND key < ? ORDER BY key",
            first,
            end,
        )
        signals = shard.query(
            "SELECT turn, source, body FROM signals WHERE turn >= ? AND turn < ? ORDER BY key",
            first,
            end,
        )
        return SessionRows(
            [(at - first, body, tokens) for at, body, tokens in turns],
            [(at - first, name, body) for at, name, body in signals],
            shard.query(
                "SELECT number, running, body FROM attempts WHERE session = ? ORDER BY number", key
            ),
            shard.query("SELECT name, body FROM derived WHERE session = ? ORDER BY name", key),
        )

    def _groups(self) -> dict[str, _Group]:
        found: dict[str, _Group] = defaultdict(_Group)
        for place in self.places():
            one = found[unit_of(place.record)]
            one.size += 1
            for attempt in place.shard.attempts(place.key, turns=None):
                if attempt.outcome is not None:
                    one.scored += 1
                    one.passed += attempt.outcome.passed
                    one.score += attempt.outcome.score
        return found

    def _task(self, task_id: str) -> Task | None:
        body = self.task_body(task_id)
        return None if body is None else decode(Task, body)

    def task_body(self, task_id: str) -> bytes | None:
        """Return a task as it is stored."""
        for shard in self.shards:
            for (body,) in shard.query("SELECT body FROM tasks WHERE id = ?", task_id):
                return bytes(body)
        return None

    def digest(self) -> str:
        """Return the sha256 (hex) of all sessions' records and ends."""
        found = hashlib.sha256()
        for place in self.places():
            for body in _head(place):
                found.update(body)
        return found.hexdigest()

    def whole(self, place: Place) -> bytes:
        """Return a digest of everything that was recorded of a session."""
        shard, key, _ = place
        found = hashlib.sha256()
        for body in _head(place):
            found.update(body)
        sql = "SELECT body, tokens FROM turns WHERE key >= ? AND key < ? ORDER BY key"
        for body, tokens in shard.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS):
            found.update(body)
            found.update(tokens or b"")
        return found.digest()

    def content(self, place: Place) -> bytes:
        """Return a digest of a session's task and messages; ids of tool calls don't count."""
        shard, key, record = place
        found = hashlib.sha256(self.task_content(record.task))
        for turn in shard.turns(key):
            said = [turn.agent, turn.context, turn.message, turn.observation]
            found.update(json.dumps(_without_ids(said), sort_keys=True).encode())
        return found.digest()

    def task_content(self, task_id: str) -> bytes:
        """Return a digest of a task's prompt and data, or of its id if the run lacks it."""
        task = self.task(task_id)
        plain: Any = task_id if task is None else [task.prompt, task.data]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).digest()


def _head(place: Place) -> Iterator[bytes]:
    """Yield a session's record and its attempts as they are stored."""
    for table, column in (("sessions", "key"), ("attempts", "session")):
        sql = f"SELECT body FROM {table} WHERE {column} = ?"  # noqa: S608
        for (body,) in place.shard.query(sql, place.key):
            yield body


def _ending(attempts: list[Attempt]) -> dict[str, Any]:
    if not attempts:
        return dict.fromkeys(("status", "cause", "score", "passed")) | {"attempts": 0}
    first = attempts[0]
    outcome = first.outcome
    return {
        "attempts": len(attempts),
        "status": str(first.status),
        "cause": first.cause,
        "score": None if outcome is None else outcome.score,
        "passed": None if outcome is None else outcome.passed,
    }


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    dropped = {"tool_call_id"} | ({"id"} if "function" in value else set())
    return {key: _without_ids(one) for key, one in value.items() if key not in dropped}
