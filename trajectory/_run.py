"""Reading a run from one or several store files, also while they are being written."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trajgym.trajectory._closing import Closing
from trajgym.trajectory._codec import decode, decode_turn, replace_surrogates
from trajgym.trajectory._database import (
    AMENDED,
    OUTCOMES,
    SUFFIX,
    TURN_BITS,
    connect_reader,
    has_writer,
    translated,
)
from trajgym.trajectory._errors import InvalidInput, StoreCorrupt, StoreError, StoreNotBegun
from trajgym.trajectory._html import run_html
from trajgym.trajectory._records import (
    Attempt,
    Group,
    Outcome,
    SessionRecord,
    Status,
    Task,
    Turn,
    Usage,
)
from trajgym.trajectory._tree import SessionTree

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Iterable, Iterator

__all__ = ["Annotation", "AttemptSummary", "Blob", "Run", "SessionSummary", "newer_group"]

_T = TypeVar("_T")
_PAGE = 256
"""Rows per page while streaming; no read transaction stays open between pages."""
_LOST = "side:lost"
"""Role of what stands for a turn that could not be written."""
_MOST_LOST = 100_000
"""More records that are missing in a row are a damaged key."""


class Blob(NamedTuple):
    """Stored bytes and their media type."""

    data: bytes
    media_type: str


class Annotation(NamedTuple):
    """The signals that an annotator added to a turn."""

    turn: int
    source: str
    """The annotator."""
    signals: dict[str, Any]


class SessionSummary(NamedTuple):
    """A session without its turns, for listings."""

    record: SessionRecord
    attempts: list[Attempt]
    turns: int


class AttemptSummary(NamedTuple):
    """How one attempt ended, for listings of large runs."""

    session: str
    """Id of the session."""
    task: str
    sample: int
    attempt: int
    status: Status
    score: float | None
    """None without an outcome."""
    passed: bool
    cause: str
    turns: int
    """Number of turns of the session."""


class Run(Closing):
    """Reads a run. Iteration streams, so memory use does not grow with the size of the run.

    Attempts without an end are reported as ``running`` while a live process writes their file,
    and as ``interrupted`` otherwise.

    Args:
        path: a run directory (all ``*.sqlite`` files in it), or one such file.
        outcomes: show these outcomes, which a later scoring kept under a name, in place of the
            recorded ones.

    Raises:
        StoreError: there is no run at ``path``.
        InvalidInput: a scored attempt has no outcome of that name; raised when it is read.
        StoreCorrupt: a file is damaged or is not a store.
        StoreSchemaMismatch: a file needs another version of this library.
    """

    def __init__(self, path: str | os.PathLike[str], *, outcomes: str | None = None) -> None:
        self.path = Path(path)
        files = [self.path] if self.path.suffix == SUFFIX else sorted(self.path.glob(f"*{SUFFIX}"))
        if not files:
            raise StoreError(f"{self.path}: no run here (no *{SUFFIX} file)")
        self._files = files
        self._shards: list[_Shard] = []
        try:
            for file in files:
                try:
                    self._shards.append(_Shard(file, outcomes))
                except StoreNotBegun:  # others may have sessions: the run is what they hold
                    if len(files) == 1:
                        raise
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> list[Path]:
        """The files that the run consists of; each has its own writer."""
        return list(self._files)

    def sessions(self, ids: Iterable[str] | None = None) -> Iterator[SessionTree]:
        """Yield sessions with their turns.

        Args:
            ids: of the sessions, in this order; ids that the run does not have are left out. By
                default every session, in the order in which they began.
        """
        if ids is not None:
            for name in ids:
                if (place := self._place(name)) is not None:
                    shard, key = place
                    yield shard.tree(key, shard.head(key))
            return
        for shard in self._shards:
            for key, record in shard.heads():
                yield shard.tree(key, record)

    def session(self, session_id: str) -> SessionTree:
        """Return one session.

        Raises:
            InvalidInput: no session of that id.
        """
        for tree in self.sessions([session_id]):
            return tree
        raise InvalidInput(f"{self.path}: no session {session_id!r}")

    def _place(self, session_id: str) -> tuple[_Shard, int] | None:
        """Return the file that has a session, and its key there."""
        for shard in self._shards:
            if (key := shard.locate(session_id)) is not None:
                return shard, key
        return None

    def summaries(self) -> Iterator[SessionSummary]:
        """Yield every session without its turns, in the order in which they began."""
        for shard in self._shards:
            yield from shard.summaries()

    def attempt_summaries(self) -> Iterator[AttemptSummary]:
        """Yield one line per attempt, by session, in the order in which the sessions began.

        Only what a line contains is decoded, which is several times as fast as :meth:`summaries`.
        """
        for shard in self._shards:
            yield from shard.attempt_summaries()

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of the run; a task stored in several files is yielded once."""
        seen: set[str] = set()
        for shard in self._shards:
            for task in shard.all(Task, "SELECT body FROM tasks ORDER BY rowid"):
                if task.id not in seen:
                    seen.add(task.id)
                    yield task

    def task(self, task_id: str) -> Task | None:
        """Return one task, or None if the run does not hold it."""
        for shard in self._shards:
            for body in shard.query("SELECT body FROM tasks WHERE id = ?", task_id):
                return decode(Task, body[0])
        return None

    def groups(self) -> Iterator[Group]:
        """Yield the groups of the run; of one that several files have, the newest state."""
        sql = "SELECT body FROM groups ORDER BY rowid"
        if len(self._shards) == 1:
            yield from self._shards[0].all(Group, sql)
            return
        newest: dict[str, tuple[tuple[int, bool, int], int]] = {}  # age, and number of the file
        for number, shard in enumerate(self._shards):
            for group in shard.all(Group, sql):
                age = _age(group)
                if group.id not in newest or age > newest[group.id][0]:
                    newest[group.id] = age, number
        for name, (_, number) in newest.items():
            for (body,) in self._shards[number].query(_GROUP, name):
                yield decode(Group, body)

    def group(self, group_id: str) -> Group | None:
        """Return one group, or None."""
        found: Group | None = None
        for shard in self._shards:
            for (body,) in shard.query(_GROUP, group_id):
                found = newer_group(decode(Group, body), found)
        return found

    def sealed_groups(self, after: int = 0, most: int = _PAGE) -> list[tuple[int, Group]]:
        """Return the sealed groups of a run of one file, in the order of sealing, with positions.

        Args:
            after: position of the last group that is left out.
            most: largest number of groups.
        """
        shard = self._shards[0]
        rows = shard.query(_SEALED, after, most)
        return [(position, decode(Group, body)) for position, body in rows]

    def blob(self, name: str) -> Blob:
        """Return stored bytes by their sha256 (hex).

        Raises:
            InvalidInput: no such blob.
        """
        for shard in self._shards:
            for row in shard.query("SELECT data, media_type FROM blobs WHERE hash = ?", name):
                return Blob(*row)
        raise InvalidInput(f"{self.path}: no blob {name}")

    def blobs(self) -> Iterator[str]:
        """Yield the names (sha256, hex) of the stored blobs, sorted within each file."""
        seen: set[str] = set()
        for shard in self._shards:
            last = ""
            sql = "SELECT hash FROM blobs WHERE hash > ? ORDER BY hash LIMIT ?"
            while page := shard.query(sql, last, _PAGE):
                for (last,) in page:
                    if last not in seen:
                        seen.add(last)
                        yield last

    def derived(self, session_id: str) -> dict[str, bytes]:
        """Return the values that derivers stored for a session, by name."""
        place = self._place(session_id)
        return {} if place is None else place[0].derived(place[1])

    def outcomes(self, session_id: str) -> dict[str, dict[int, Outcome]]:
        """Return what later scorings found for a session: by name, then by attempt.

        The recorded outcomes are not among them; they are the attempts' own.
        """
        place = self._place(session_id)
        return {} if place is None else place[0].outcomes(place[1])

    def annotations(self, session_id: str) -> list[Annotation]:
        """Return the signals that annotators added to a session's turns, in the order of writing.

        A turn's ``signals`` contain them merged; a later value replaces an earlier one.
        """
        place = self._place(session_id)
        if place is None:
            return []
        shard, key = place
        return [
            Annotation(index, source, json.loads(body))
            for index, source, body in shard.signals(key)
            if source != AMENDED
        ]

    def meta(self) -> dict[str, str]:
        """Return the run's metadata."""
        return {key: value for shard in self._shards for key, value in shard.query(_META)}

    def check(self) -> list[str]:
        """Read everything and return one sentence per problem; an empty list if there is none."""
        problems: list[str] = []
        for shard in self._shards:
            try:
                lines = shard.query("PRAGMA integrity_check")
                problems += [f"{shard.path}: {line}" for (line,) in lines if line != "ok"]
                for key, record in shard.heads():
                    problems += [
                        f"{shard.path}: session {record.id}: turn {turn.index} was not written"
                        for turn in shard.tree(key, record).turns
                        if turn.role == _LOST
                    ]
            except StoreError as error:
                problems.append(str(error))
        return problems

    def locate(self, session_id: str) -> int | None:
        """Return the key of a session in a run of one file, for the writer."""
        return self._shards[0].locate(session_id)

    def turn_count(self, session_id: str) -> int:
        """Return how many turns a session has."""
        place = self._place(session_id)
        return 0 if place is None else place[0].count(place[1])

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

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        return run_html(str(self.path), self.summaries(), self.groups())

    def close(self) -> None:
        """Close the files. Idempotent; a query in another thread is waited for."""
        for shard in self._shards:
            shard.close()


_GROUP = "SELECT body FROM groups WHERE id = ?"
_META = "SELECT key, value FROM meta ORDER BY key"
_SEALED = (
    "SELECT rowid, body FROM groups WHERE rowid > ? "
    "AND json_extract(CAST(body AS TEXT), '$.sealed') ORDER BY rowid LIMIT ?"
)
"""Replacing a group's row gives it the next rowid, and a sealed group is not replaced any more."""
_SUMMARY_PAGE = 1024
_TURN_MASK = (1 << TURN_BITS) - 1
_LAST_TURN = (
    f"(SELECT max(turns.key) FROM turns WHERE turns.key >= sessions.key << {TURN_BITS} "  # noqa: S608 - a constant
    f"AND turns.key < (sessions.key + 1) << {TURN_BITS})"
)
_SUMMARIES = f"SELECT key, body, {_LAST_TURN} FROM sessions WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608
_LINES = (
    f"SELECT session, number, id, {_LAST_TURN}, "  # noqa: S608
    "json_extract(CAST(sessions.body AS TEXT), '$.task', '$.sample'), "
    "json_extract(CAST(attempts.body AS TEXT), "
    "'$.status', '$.outcome.score', '$.outcome.passed', '$.cause') "
    "FROM attempts JOIN sessions ON sessions.key = session "
    "WHERE (session, number) > (?, ?) ORDER BY session, number LIMIT ?"
)
_ATTEMPTS = (
    "SELECT session, body FROM attempts WHERE session > ? AND session <= ? ORDER BY session, number"
)


def newer_group(group: Group, other: Group | None) -> Group:
    """Return the newer of two states of a group.

    Members are only added: a process that continues a group begins with all members that it had.
    Members only leave: one that was too old when its group was delivered does not come back.
    """
    return group if other is None or _age(group) > _age(other) else other


def _age(group: Group) -> tuple[int, bool, int]:
    left = sum(bool(member.left) for member in group.members)
    return len(group.members), group.sealed, left


def _is_lost(leaf: int | None, turns: list[Turn]) -> bool:
    """Return whether an attempt's last turn could not be written."""
    return leaf is not None and (leaf >= len(turns) or turns[leaf].role == _LOST)


def _lost_turn(index: int) -> Turn:
    """Return what stands for a turn that could not be written, so that later ones can be read.

    No policy or agent has received it: a turn is acknowledged only once it is stored.
    """
    return Turn(
        index=index,
        parent=None,
        message={"role": "assistant", "content": ""},
        agent="lost",
        finish="abort",
        usage=Usage(prompt_tokens=0, completion_tokens=0),
        delivery="orphan",
        role=_LOST,
        role_reason="it could not be written to the store",
    )


def _lost_attempt(index: int) -> Attempt:
    """Return what stands for an attempt that could not be written; later ones can be read."""
    status = Status("failed", "store")
    return Attempt(index=index, status=status, cause="it could not be written to the store")


def _turns(last: int | None) -> int:
    """Return the number of a session's turns from the key of the last one."""
    return 0 if last is None else (last & _TURN_MASK) + 1


def _attempt_summaries(summary: SessionSummary) -> Iterator[AttemptSummary]:
    record = summary.record
    for attempt in summary.attempts:
        yield AttemptSummary(
            record.id,
            record.task,
            record.sample,
            attempt.index,
            attempt.status,
            None if attempt.outcome is None else attempt.outcome.score,
            attempt.outcome is not None and attempt.outcome.passed,
            attempt.cause,
            summary.turns,
        )


class _Shard:
    """One file of a run."""

    def __init__(self, path: Path, outcomes: str | None = None) -> None:
        self.path = path
        self._outcomes = outcomes
        self._connection: sqlite3.Connection | None = connect_reader(path)
        # SQLite crashes if a connection is closed while another thread uses it.
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        texts = [replace_surrogates(v) if type(v) is str else v for v in values]
        with self._lock, translated(self.path):
            if self._connection is None:
                raise StoreError(f"{self.path}: the run is closed")
            return self._connection.execute(sql, texts).fetchall()

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

    def summaries(self) -> Iterator[SessionSummary]:
        last = 0
        while page := self.query(_SUMMARIES, last, _SUMMARY_PAGE):
            before, last = last, page[-1][0]
            attempts: dict[int, list[Attempt]] = {}
            for key, body in self.query(_ATTEMPTS, before, last):
                attempts.setdefault(key, []).append(self._decode(Attempt, body))
            for key, body, turn in page:
                own = self._ends(key, attempts.get(key, []))
                record = self._decode(SessionRecord, body)
                yield SessionSummary(record, own, _turns(turn))

    def attempt_summaries(self) -> Iterator[AttemptSummary]:
        if self._outcomes is not None:
            for summary in self.summaries():
                yield from _attempt_summaries(summary)
            return
        ended: dict[str | None, Status] = {}
        place = (0, -1)
        while page := self.query(_LINES, *place, _SUMMARY_PAGE):
            place = page[-1][:2]
            decoded = json.loads(f"[{','.join([f'{row[4]},{row[5]}' for row in page])}]")
            lines = zip(page, decoded[::2], decoded[1::2], strict=True)
            # By position, and with nothing called for most of them: there can be a million.
            for (_, attempt, session, turn, _, _), (task, sample), end in lines:
                text, score, passed, cause = end
                yield AttemptSummary(
                    session,
                    task,
                    sample or 0,
                    attempt,
                    ended.get(text) or self._status(text, ended),
                    score,
                    passed is True or bool(passed),
                    cause or "",
                    0 if turn is None else (turn & _TURN_MASK) + 1,
                )

    def _status(self, text: str | None, ended: dict[str | None, Status]) -> Status:
        """Return the status of a stored text; one that will not change is added to ``ended``."""
        status = Status.parse(text or str(Attempt().status))
        if status.ended:
            ended[text] = status
        elif not has_writer(self.path):
            status = Status("interrupted")
        return status

    def head(self, key: int) -> SessionRecord:
        ((body,),) = self.query("SELECT body FROM sessions WHERE key = ?", key)
        return self._decode(SessionRecord, body)

    def locate(self, session_id: str) -> int | None:
        rows = self.query("SELECT key FROM sessions WHERE id = ?", session_id)
        return rows[0][0] if rows else None

    def count(self, key: int) -> int:
        sql = "SELECT max(key) FROM turns WHERE key >= ? AND key < ?"
        ((last,),) = self.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS)
        return _turns(last)

    def turns(self, key: int) -> Iterator[Turn]:
        sql = "SELECT key, body, tokens FROM turns WHERE key >= ? AND key < ? ORDER BY key"
        following = 0
        for turn_key, body, tokens in self.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS):
            index = turn_key & _TURN_MASK
            yield from map(_lost_turn, self._lost(key, following, index))
            following = index + 1
            try:
                yield decode_turn(body, tokens)
            except InvalidInput as error:
                raise StoreCorrupt(
                    f"{self.path}: session key {key}, turn {index}: {error}"
                ) from error

    def _lost(self, key: int, first: int, end: int) -> range:
        """Return the indices of records that could not be written."""
        if end - first > _MOST_LOST:
            raise StoreCorrupt(
                f"{self.path}: session key {key}: {end - first} records before {end} are missing"
            )
        return range(first, end)

    def tree(self, key: int, record: SessionRecord) -> SessionTree:
        turns = list(self.turns(key))
        for index, source, body in self.signals(key):
            if index >= len(turns) or turns[index].role == _LOST:
                continue
            if source == AMENDED:
                for name, value in json.loads(body).items():
                    setattr(turns[index], name, value)
            else:
                turns[index].signals.update(json.loads(body))
        attempts = self.attempts(key, turns=turns)
        try:
            return SessionTree(record, turns, attempts)
        except InvalidInput as error:
            raise StoreCorrupt(f"{self.path}: {error}") from error

    def signals(self, key: int) -> Iterator[tuple[int, str, bytes]]:
        sql = "SELECT turn, source, body FROM signals WHERE turn >= ? AND turn < ? ORDER BY key"
        for turn, source, body in self.query(sql, key << TURN_BITS, (key + 1) << TURN_BITS):
            yield turn & _TURN_MASK, source, body

    def attempts(self, key: int, *, turns: list[Turn] | None) -> list[Attempt]:
        """Return a session's attempts; leaves of running ones are found in ``turns``, if given.

        So are those that could not be written.
        """
        sql = "SELECT number, body FROM attempts WHERE session = ? ORDER BY number"
        attempts: list[Attempt] = []
        for number, body in self.query(sql, key):
            attempts += map(_lost_attempt, self._lost(key, len(attempts), number))
            attempts.append(self._decode(Attempt, body))
        running = [attempt for attempt in attempts if not attempt.status.ended]
        self._ends(key, attempts)
        if turns is None:
            return attempts
        for attempt in running + [one for one in attempts if _is_lost(one.leaf, turns)]:
            own = [t.index for t in turns if t.attempt == attempt.index and t.agent == "main"]
            attempt.leaf = own[-1] if own else attempt.forked_at
        return attempts

    def _ends(self, key: int, attempts: list[Attempt]) -> list[Attempt]:
        """Change how a session's attempts ended to what is known now; return them."""
        if self._outcomes is not None:
            self._replace_outcomes(key, attempts, self._outcomes)
        for attempt in attempts:
            if not attempt.status.ended and not has_writer(self.path):
                attempt.status = Status("interrupted")
        return attempts

    def derived(self, key: int) -> dict[str, bytes]:
        sql = "SELECT name, body FROM derived WHERE session = ? ORDER BY name"
        rows = self.query(sql, key)
        return {name: body for name, body in rows if not name.startswith(OUTCOMES)}

    def outcomes(self, key: int) -> dict[str, dict[int, Outcome]]:
        sql = "SELECT name, body FROM derived WHERE session = ? ORDER BY name"
        return {
            name.removeprefix(OUTCOMES): {
                int(attempt): self._decode(Outcome, json.dumps(outcome))
                for attempt, outcome in json.loads(body).items()
            }
            for name, body in self.query(sql, key)
            if name.startswith(OUTCOMES)
        }

    def _replace_outcomes(self, key: int, attempts: list[Attempt], name: str) -> None:
        found = self.outcomes(key).get(name, {})
        for attempt in attempts:
            if attempt.outcome is None:
                continue
            if attempt.index not in found:
                raise InvalidInput(
                    f"{self.path}: session {self.head(key).id}, attempt {attempt.index}: there is "
                    f"no outcome {name!r}: score the run again under that name first "
                    "(trajgym rescore)",
                )
            attempt.outcome = found[attempt.index]

    def _decode(self, kind: type[_T], body: bytes | str) -> _T:
        try:
            return decode(kind, body)
        except InvalidInput as error:
            raise StoreCorrupt(f"{self.path}: {error}") from error
