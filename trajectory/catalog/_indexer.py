"""Bringing a catalogue up to date with the files of its run, a bounded piece of work at a time."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from trajgym.trajectory._database import (
    AMENDED,
    SUFFIX,
    TURN_BITS,
    connect_reader,
    has_writer,
    translated,
)
from trajgym.trajectory._errors import StoreCorrupt, StoreNotBegun
from trajgym.trajectory._messages import blob_hashes
from trajgym.trajectory._records import Status
from trajgym.trajectory._tokens import unpack_tokens
from trajgym.trajectory.catalog._schema import SESSION_BITS, TEXT_BITS
from trajgym.trajectory.catalog._text import reason_of, turn_text

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Indexer"]

_HEADS = 2000
"""Sessions that are read at once."""
_TURNS = 500
"""Turns that are read at once."""
_MASK = (1 << TURN_BITS) - 1
_FAILED = frozenset({"error", "invalid", "timeout"})


@dataclass(slots=True)
class _Source:
    """A file of the run that is open for reading."""

    path: Path
    connection: sqlite3.Connection
    identity: tuple[int, int]
    version: int = -1
    """SQLite's data version when the file was last read to its end."""
    alive: bool = False

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self.connection.execute(sql, values).fetchall()


@dataclass(slots=True)
class _Place:
    """How far a file has been read; a row of ``files``."""

    file: int
    last_id: str = ""
    session: int = 0
    turn: int = 0
    turns: int = 0
    group: int = 0
    signal: int = 0
    alive: int = 0


@dataclass(slots=True)
class _Figures:
    """What some turns add to the figures of their session."""

    turns: int = 0
    calls: int = 0
    failed: int = 0
    prompt: int = 0
    completion: int = 0
    exact: int = 0
    images: int = 0
    seconds: float = 0.0
    reward: float | None = None
    tools: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    first: int = 0

    def add(self, turn: dict[str, Any], packed: bytes | None) -> None:
        if not self.turns:
            self.first = turn["index"]
        self.turns += 1
        self.texts.append(turn_text(turn))
        self.images += sum(1 for _ in blob_hashes(turn.get("observation", ())))
        self.images += sum(1 for _ in blob_hashes(turn.get("context", ())))
        if turn.get("role") == "user":
            return  # a simulated user's: another policy than the agent's
        for call in turn.get("calls", ()):
            self.calls += 1
            self.tools[call["name"]] += 1
            if call["status"] in _FAILED:
                self.failed += 1
                self.failures[call["name"]] += 1
        usage = turn.get("usage") or {}
        self.prompt += usage.get("prompt_tokens") or 0
        tokens = usage.get("completion_tokens") or 0
        if packed is not None:
            self.exact += 1
            tokens = tokens or unpack_tokens(packed).response_ids.size
        self.completion += tokens
        self.seconds += turn.get("policy_seconds", 0.0) + turn.get("env_seconds", 0.0)
        if turn.get("reward") is not None:
            self.reward = (self.reward or 0.0) + turn["reward"]


class Indexer:
    """Writes a catalogue. Use it from one thread at a time.

    Args:
        run: a run directory, or one ``*.sqlite`` file of it.
        connection: the catalogue, open for writing.
    """

    def __init__(self, run: Path, connection: sqlite3.Connection) -> None:
        self._run, self._db = run, connection
        self._sources: dict[str, _Source] = {}

    def close(self) -> None:
        """Close the files of the run."""
        for source in self._sources.values():
            source.connection.close()
        self._sources.clear()

    def refresh(self, seconds: float) -> bool:
        """Read what is new for about so long, in one transaction; return whether all is read.

        Raises:
            StoreError: a file of the run can't be read.
            StoreCorrupt: a file is damaged or is not a store.
        """
        end = time.monotonic() + seconds
        self._open()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            places = self._places()
            complete, changed = True, self._replaced(places)
            if changed:
                self._clear()
                places = {}
            for name, source in self._sources.items():
                place = places.get(name) or self._add(name)
                done, new = self._follow(source, place, end)
                complete, changed = complete and done, changed or new
            if changed:
                self._db.execute(
                    "INSERT INTO meta VALUES ('revision', '1') ON CONFLICT (key) DO UPDATE "
                    "SET value = CAST(value AS INTEGER) + 1"
                )
            self._db.execute("COMMIT")
        except BaseException:
            for source in self._sources.values():
                source.version = -1
            if self._db.in_transaction:  # SQLite ends it itself where the disk is full
                self._db.execute("ROLLBACK")
            raise
        return complete

    def _open(self) -> None:
        one = self._run.suffix == SUFFIX
        paths = [self._run] if one else sorted(self._run.glob(f"*{SUFFIX}"))
        known = {path.name: path for path in paths}
        for name, source in list(self._sources.items()):
            if name not in known or _identity(known[name]) != source.identity:
                source.connection.close()
                del self._sources[name]
        for path in paths:
            if path.name in self._sources:
                continue
            try:
                connection = connect_reader(path)
            except StoreNotBegun:
                continue  # its writer is about to create the tables
            self._sources[path.name] = _Source(path, connection, _identity(path))

    def _places(self) -> dict[str, _Place]:
        rows = self._db.execute(
            "SELECT name, file, last_id, session, turn, turns, grp, signal, alive FROM files"
        ).fetchall()
        return {name: _Place(*rest) for name, *rest in rows}

    def _add(self, name: str) -> _Place:
        cursor = self._db.execute(
            "INSERT INTO files VALUES (NULL, ?, '', 0, 0, 0, 0, 0, 0)", [name]
        )
        assert cursor.lastrowid is not None
        return _Place(cursor.lastrowid)

    def _replaced(self, places: dict[str, _Place]) -> bool:
        """Return whether the catalogue describes files that are gone, or were replaced."""
        for name, place in places.items():
            source = self._sources.get(name)
            if source is None:
                return True
            if source.version >= 0:
                continue  # it was checked when it was opened
            sql = "SELECT id FROM sessions WHERE key = ?"
            if place.session and source.query(sql, place.session) != [(place.last_id,)]:
                return True
            ((last,),) = source.query("SELECT coalesce(max(rowid), 0) FROM turns")
            if last < place.turn:
                return True
        return False

    def _clear(self) -> None:
        for table in ("files", "sessions", "attempts", "tools", "groups"):
            self._db.execute(f"DELETE FROM {table}")  # noqa: S608 - a constant
        self._db.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
        for source in self._sources.values():
            source.version = -1

    def _follow(self, source: _Source, place: _Place, end: float) -> tuple[bool, bool]:
        """Read what is new in a file; return whether all is read, and whether anything was new."""
        alive = has_writer(source.path)
        ((version,),) = source.query("PRAGMA data_version")
        if version == source.version and alive == source.alive == bool(place.alive):
            return True, False
        source.query("BEGIN")  # one moment of the file, while others write it
        try:
            complete, changed = self._read(source, place, end, alive=alive)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # Records are read as plain JSON here, and are not compared with their schema before.
            raise StoreCorrupt(f"{source.path}: a record is damaged: {error!r}") from error
        finally:
            source.query("COMMIT")
        source.alive = alive
        if complete:
            source.version = version
        return complete, changed

    def _read(
        self, source: _Source, place: _Place, end: float, *, alive: bool
    ) -> tuple[bool, bool]:
        changed = alive != bool(place.alive)
        touched = set(self._open_keys(place))
        complete = False
        while heads := self._heads(source, place):
            touched |= heads
            if time.monotonic() > end:
                break
        else:
            while (found := self._turns(source, place)) is not None:
                touched |= found
                if time.monotonic() > end:
                    break
            else:
                complete = True
        amended = self._amended(source, place)
        changed |= self._groups(source, place) or bool(touched or amended)
        self._attempts(source, place, touched, alive=alive)
        ((place.turns,),) = source.query("SELECT coalesce(max(rowid), 0) FROM turns")
        self._db.execute(
            "UPDATE files SET last_id = ?, session = ?, turn = ?, turns = ?, grp = ?, signal = ?, "
            "alive = ? WHERE file = ?",
            [
                place.last_id,
                place.session,
                place.turn,
                place.turns,
                place.group,
                place.signal,
                alive,
                place.file,
            ],
        )
        return complete, changed

    # Parts ----------------------------------------------------------------------------------

    def _open_keys(self, place: _Place) -> Iterator[int]:
        low, high = place.file << SESSION_BITS, (place.file + 1) << SESSION_BITS
        sql = "SELECT key FROM sessions WHERE open AND key >= ? AND key < ?"
        for (key,) in self._db.execute(sql, [low, high]):
            yield key - low

    def _heads(self, source: _Source, place: _Place) -> set[int]:
        sql = "SELECT key, body FROM sessions WHERE key > ? ORDER BY key LIMIT ?"
        rows = source.query(sql, place.session, _HEADS)
        heads, texts = [], []
        for key, body in rows:
            record = _parsed(source, body)
            env = str((record.get("env") or {}).get("id") or "")
            labels = record.get("labels") or {}
            own = place.file << SESSION_BITS | key
            group = record.get("group")
            heads.append(
                (
                    own,
                    record["id"],
                    record["task"],
                    env,
                    str(labels.get("policy") or ""),
                    group,
                    record.get("sample", 0),
                    record.get("created_at", 0.0),
                )
            )
            named = (record["id"], record["task"], env, group or "", *map(str, labels.values()))
            texts.append((own << TEXT_BITS | _MASK, " \n".join(named)))
        self._db.executemany(
            "INSERT INTO sessions (key, id, task, env, policy, grp, sample, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            heads,
        )
        self._db.executemany("INSERT INTO texts (rowid, body) VALUES (?, ?)", texts)
        if rows:
            place.session = rows[-1][0]
            place.last_id = heads[-1][1]
        return {key for key, _ in rows}

    def _turns(self, source: _Source, place: _Place) -> set[int] | None:
        """Read some turns; return the keys of their sessions, None if there was no turn."""
        sql = "SELECT rowid, key, body, tokens FROM turns WHERE rowid > ? ORDER BY rowid LIMIT ?"
        rows = source.query(sql, place.turn, _TURNS)
        if not rows:
            return None
        found: dict[int, _Figures] = {}
        for _, key, body, packed in rows:
            figures = found.setdefault(key >> TURN_BITS, _Figures())
            figures.add(_parsed(source, body), packed)
        place.turn = rows[-1][0]
        self._add_figures(place, found)
        return set(found)

    def _add_figures(self, place: _Place, found: dict[int, _Figures]) -> None:
        keys = {key: place.file << SESSION_BITS | key for key in found}
        self._db.executemany(
            "UPDATE sessions SET turns = turns + ?, calls = calls + ?, "
            "failed_calls = failed_calls + ?, prompt_tokens = prompt_tokens + ?, "
            "completion_tokens = completion_tokens + ?, exact = exact + ?, images = images + ?, "
            "seconds = seconds + ?, "
            "reward = CASE WHEN ? IS NULL THEN reward ELSE coalesce(reward, 0) + ? END "
            "WHERE key = ?",
            [
                (
                    one.turns,
                    one.calls,
                    one.failed,
                    one.prompt,
                    one.completion,
                    one.exact,
                    one.images,
                    one.seconds,
                    one.reward,
                    one.reward,
                    keys[key],
                )
                for key, one in found.items()
            ],
        )
        self._db.executemany(
            "INSERT INTO tools VALUES (?, ?, ?, ?) ON CONFLICT (session, name) DO UPDATE "
            "SET calls = calls + excluded.calls, failed = failed + excluded.failed",
            [
                (keys[key], name, count, one.failures[name])
                for key, one in found.items()
                for name, count in one.tools.items()
            ],
        )
        self._db.executemany(
            "INSERT INTO texts (rowid, body) VALUES (?, ?)",
            [
                (keys[key] << TEXT_BITS | one.first, "\n".join(one.texts))
                for key, one in found.items()
            ],
        )

    def _amended(self, source: _Source, place: _Place) -> set[int]:
        """Sum the step rewards again of sessions whose turns were given one later."""
        sql = "SELECT key, turn, source, body FROM signals WHERE key > ? ORDER BY key"
        rows = source.query(sql, place.signal)
        sessions = {
            turn >> TURN_BITS
            for _, turn, name, body in rows
            if name == AMENDED and "reward" in json.loads(body)
        }
        for key in sessions:
            low, high = key << TURN_BITS, (key + 1) << TURN_BITS
            sql = "SELECT key, body FROM turns WHERE key >= ? AND key < ? AND rowid <= ?"
            rewards = {
                turn: _parsed(source, body).get("reward")
                for turn, body in source.query(sql, low, high, place.turn)
            }
            sql = "SELECT turn, body FROM signals WHERE turn >= ? AND turn < ? AND source = ?"
            for turn, body in source.query(f"{sql} ORDER BY key", low, high, AMENDED):
                if turn in rewards and "reward" in (given := json.loads(body)):
                    rewards[turn] = given["reward"]
            known = [reward for reward in rewards.values() if reward is not None]
            self._db.execute(
                "UPDATE sessions SET reward = ? WHERE key = ?",
                [sum(known) if known else None, place.file << SESSION_BITS | key],
            )
        if rows and place.turn >= self._last_turn(source):
            place.signal = rows[-1][0]  # else turns that they amend may not have been read yet
        return sessions

    @staticmethod
    def _last_turn(source: _Source) -> int:
        ((last,),) = source.query("SELECT coalesce(max(rowid), 0) FROM turns")
        return int(last)

    def _groups(self, source: _Source, place: _Place) -> bool:
        rows = source.query(
            "SELECT rowid, body FROM groups WHERE rowid > ? ORDER BY rowid", place.group
        )
        for rowid, body in rows:
            group = _parsed(source, body)
            members = group.get("members") or []
            self._db.execute(
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "sealed = excluded.sealed, members = excluded.members, left = excluded.left, "
                "planned = excluded.planned "
                "WHERE (excluded.members, excluded.sealed) >= (members, sealed)",
                [
                    group["id"],
                    place.file << SESSION_BITS | rowid,
                    group["task"],
                    group["planned"],
                    bool(group.get("sealed")),
                    len(members),
                    sum(1 for member in members if member[2:] and member[2]),
                ],
            )
        if rows:
            place.group = rows[-1][0]
        return bool(rows)

    def _attempts(
        self, source: _Source, place: _Place, keys: Iterable[int], *, alive: bool
    ) -> None:
        """Read again how the attempts of these sessions ended."""
        sql = "SELECT number, running, body FROM attempts WHERE session = ? ORDER BY number"
        updates, lines = [], []
        for key in keys:
            if key > place.session:
                continue
            own = place.file << SESSION_BITS | key
            scores: list[float] = []
            shown = "running"
            first_cause = ""
            solved = open_ = attempts = 0
            for number, running, body in source.query(sql, key):
                attempt = _parsed(source, body)
                attempts += 1
                outcome = attempt.get("outcome")
                status = _status(attempt, running=running, alive=alive)
                cause = str(attempt.get("cause") or "")
                open_ += bool(running)
                if outcome is not None:
                    scores.append(float(outcome["score"]))
                    solved += bool(outcome["passed"])
                if not number:
                    shown, first_cause = status, cause
                lines.append(
                    (
                        own,
                        number,
                        status,
                        cause[:2000],
                        reason_of(cause),
                        None if outcome is None else outcome["score"],
                        None if outcome is None else bool(outcome["passed"]),
                        attempt.get("ended_at"),
                    )
                )
            updates.append(
                (
                    attempts,
                    len(scores),
                    solved,
                    max(scores, default=None),
                    sum(scores),
                    sum(score * score for score in scores),
                    shown,
                    reason_of(first_cause),
                    open_ > 0,
                    own,
                )
            )
        self._db.executemany(
            "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", lines
        )
        self._db.executemany(
            "UPDATE sessions SET attempts = ?, scored = ?, solved = ?, score = ?, score_sum = ?, "
            "score_squares = ?, status = ?, cause = ?, open = ? WHERE key = ?",
            updates,
        )


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _status(attempt: dict[str, Any], *, running: bool, alive: bool) -> str:
    if running:
        return "running" if alive else "interrupted"
    return str(Status.parse(str(attempt.get("status") or "running")))


def _parsed(source: _Source, body: bytes) -> dict[str, Any]:
    try:
        found = from_json(body)
    except ValueError as error:
        raise StoreCorrupt(f"{source.path}: a record is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise StoreCorrupt(f"{source.path}: a record is not a JSON object")
    return found
