"""The store's reading end: one run, from one file or several, also while it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from trajgym.trajectory._codec import decode, decode_turn
from trajgym.trajectory._database import (
    SUFFIX,
    TURN_BITS,
    connect_reader,
    has_writer,
    translated,
)
from trajgym.trajectory._errors import InvalidInput, StoreCorrupt, StoreError
from trajgym.trajectory._records import Attempt, Group, SessionRecord, Status, Task, Turn
from trajgym.trajectory._tree import SessionTree

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["Annotation", "Blob", "Run", "SessionSummary"]

_T = TypeVar("_T")
_PAGE = 256
"""Rows fetched at once while streaming: no read transaction stays open between pages."""


class Blob(NamedTuple):
    """Stored bytes and what they are."""

    data: bytes
    media_type: str


class Annotation(NamedTuple):
    """What an annotator found about a turn."""

    turn: int
    source: str
    """Who says so."""
    signals: dict[str, Any]


class SessionSummary(NamedTuple):
    """What a listing needs, read without decoding turns."""

    record: SessionRecord
    attempts: list[Attempt]
    turns: int


class Run:
    """Reads a run. Iterating streams: memory does not grow with the run.

    Attempts without an end read ``running`` while a living process writes their file, else
    ``interrupted``.

    Args:
        path: a run directory (all ``*.sqlite`` files in it), or one such file.

    Raises:
        StoreError: nothing is there.
        StoreCorrupt: a file is damaged or is not a store.
        StoreSchemaMismatch: a file needs another version of this library.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        files = [self.path] if self.path.suffix == SUFFIX else sorted(self.path.glob(f"*{SUFFIX}"))
        if not files:
            raise StoreError(f"{self.path}: no run here (no *{SUFFIX} file)")
        self._shards: list[_Shard] = []
        try:
            for file in files:
                self._shards.append(_Shard(file))
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> list[Path]:
        """The files that the run consists of; each has a writer of its own."""
        return [shard.path for shard in self._shards]

    def sessions(self) -> Iterator[SessionTree]:
        """Yield every session with its turns, in the order in which they began."""
        for shard in self._shards:
            for key, record in shard.heads():
                yield shard.tree(key, record)

    def session(self, session_id: str) -> SessionTree:
        """Return one session.

        Raises:
            InvalidInput: no session of that id.
        """
        for shard in self._shards:
            if (key := shard.locate(session_id)) is not None:
                return shard.tree(key, shard.head(key))
        raise InvalidInput(f"{self.path}: no session {session_id!r}")

    def summaries(self) -> Iterator[SessionSummary]:
        """Yield every session without its turns, in the order in which they began."""
        for shard in self._shards:
            for key, record in shard.heads():
                yield SessionSummary(record, shard.attempts(key, turns=None), shard.count(key))

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of the run; one that several files hold comes once."""
        seen: set[str] = set()
        for shard in self._shards:
            for task in shard.all(Task, "SELECT body FROM tasks ORDER BY rowid"):
                if task.id not in seen:
                    seen.add(task.id)
                    yield task

    def groups(self) -> Iterator[Group]:
        """Yield the groups of the run."""
        for shard in self._shards:
            yield from shard.all(Group, "SELECT body FROM groups ORDER BY rowid")

    def group(self, group_id: str) -> Group | None:
        """Return one group, or None."""
        for shard in self._shards:
            for body in shard.query("SELECT body FROM groups WHERE id = ?", group_id):
                return decode(Group, body[0])
        return None

    def blob(self, name: str) -> Blob:
        """Return stored bytes by their sha256 (hex).

        Raises:
            InvalidInput: no such blob.
        """
        for shard in self._shards:
            for row in shard.query("SELECT data, media_type FROM blobs WHERE hash = ?", name):
                return Blob(*row)
        raise InvalidInput(f"{self.path}: no blob {name}")

    def derived(self, session_id: str) -> dict[str, bytes]:
        """Return what derivers computed for a session, by name."""
        for shard in self._shards:
            if (key := shard.locate(session_id)) is not None:
                sql = "SELECT name, body FROM derived WHERE session = ? ORDER BY name"
                return dict(shard.query(sql, key))
        return {}

    def annotations(self, session_id: str) -> list[Annotation]:
        """Return what annotators added to a session's turns, in the order of writing.

        The turns' own ``signals`` hold the same, merged: a later value replaces an earlier one.
        """
        for shard in self._shards:
            if (key := shard.locate(session_id)) is not None:
                return [
                    Annotation(index, source, json.loads(body))
                    for index, source, body in shard.signals(key)
                ]
        return []

    def meta(self) -> dict[str, str]:
        """Return the facts that were kept about the run."""
        return {key: value for shard in self._shards for key, value in shard.query(_META)}

    def check(self) -> list[str]:
        """Read everything and return what is wrong, one sentence each; empty if sound."""
        problems: list[str] = []
        for shard in self._shards:
            try:
                lines = shard.query("PRAGMA integrity_check")
                problems += [f"{shard.path}: {line}" for (line,) in lines if line != "ok"]
                for key, record in shard.heads():
                    shard.tree(key, record)
            except StoreError as error:
                problems.append(str(error))
        return problems

    def locate(self, session_id: str) -> int | None:
        """Return the key of a session in a run of one file, for the writer."""
        return self._shards[0].locate(session_id)

    def turn_count(self, session_id: str) -> int:
        """Return how many turns a session has."""
        for shard in self._shards:
            if (key := shard.locate(session_id)) is not None:
                return shard.count(key)
        return 0

    def open_attempts(self) -> Iterator[tuple[str, Attempt]]:
        """Yield the attempts without an end, as ``(session id, attempt)``."""
        for shard in self._shards:
            rows = shard.query(
                "SELECT sessions.key, id, number FROM attempts "
                "JOIN sessions ON sessions.key = session WHERE running",
            )
            for key, session_id, number in rows:
                attempts = shard.attempts(key, turns=list(shard.turns(key)))
                yield session_id, attempts[number]

    def close(self) -> None:
        """Close the files. Idempotent."""
        for shard in self._shards:
            shard.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_META = "SELECT key, value FROM meta ORDER BY key"


class _Shard:
    """One file of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = connect_reader(path)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self.connection.execute(sql, values).fetchall()

    def all(self, kind: type[_T], sql: str) -> Iterator[_T]:
        offset = 0
        while page := self.query(f"{sql} LIMIT ? OFFSET ?", _PAGE, offset):
            offset += len(page)
            for (body,) in page:
                yield self._decode(kind, body)

    def heads(self) -> Iterator[tuple[int, SessionRecord]]:
        last = 0
        sql = "SELECT key, body FROM sessions WHERE key > ? ORDER BY key LIMIT ?"
        while page := self.query(sql, last, _PAGE):
            for last, body in page:
                yield last, self._decode(SessionRecord, body)

    def head(self, key: int) -> SessionRecord:
        ((body,),) = self.query("SELECT body FROM sessions WHERE key = ?", key)
        return self._decode(SessionRecord, body)

    def locate(self, session_id: str) -> int | None:
        rows = self.query("SELECT key FROM sessions WHERE id = ?", session_id)
        return rows[0][0] if rows else None

    def count(self, key: int) -> int:
        sql = "SELECT max(key) FROM turns WHERE key >= ? AND key < ?"
        ((last,),) = self.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS)
        return 0 if last is None else (last & ((1 << TURN_BITS) - 1)) + 1

    def turns(self, key: int) -> Iterator[Turn]:
        sql = "SELECT key, body, tokens FROM turns WHERE key >= ? AND key < ? ORDER BY key"
        for turn_key, body, tokens in self.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS):
            try:
                yield decode_turn(body, tokens)
            except InvalidInput as error:
                index = turn_key & ((1 << TURN_BITS) - 1)
                raise StoreCorrupt(
                    f"{self.path}: session key {key}, turn {index}: {error}"
                ) from error

    def tree(self, key: int, record: SessionRecord) -> SessionTree:
        turns = list(self.turns(key))
        for index, _, body in self.signals(key):
            if index < len(turns):
                turns[index].signals.update(json.loads(body))
        try:
            return SessionTree(record, turns, self.attempts(key, turns=turns))
        except InvalidInput as error:
            raise StoreCorrupt(f"{self.path}: {error}") from error

    def signals(self, key: int) -> Iterator[tuple[int, str, bytes]]:
        sql = "SELECT turn, source, body FROM signals WHERE turn >= ? AND turn < ? ORDER BY key"
        for turn, source, body in self.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS):
            yield turn & ((1 << TURN_BITS) - 1), source, body

    def attempts(self, key: int, *, turns: list[Turn] | None) -> list[Attempt]:
        sql = "SELECT body FROM attempts WHERE session = ? ORDER BY number"
        attempts = [self._decode(Attempt, body) for (body,) in self.query(sql, key)]
        for attempt in attempts:
            if attempt.status.ended:
                continue
            if not has_writer(self.path):
                attempt.status = Status("interrupted")
            if turns is not None:
                own = [t.index for t in turns if t.attempt == attempt.index and t.agent == "main"]
                attempt.leaf = own[-1] if own else attempt.forked_at
        return attempts

    def _decode(self, kind: type[_T], body: bytes) -> _T:
        try:
            return decode(kind, body)
        except InvalidInput as error:
            raise StoreCorrupt(f"{self.path}: {error}") from error
