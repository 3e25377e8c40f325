"""Values over a whole run, derived a few sessions at a time and kept in a temporary file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trajgym.rewards._combined import common_table, widest_scope
from trajgym.rewards._errors import MissingSignals
from trajgym.rewards._values import SessionValues
from trajgym.trajectory import Group, InvalidInput, Member, StoreError
from trajgym.trajectory._internal import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trajgym.rewards._deriver import Deriver
    from trajgym.rewards._table import Scope, TurnTable
    from trajgym.rewards._values import Advantages, Rewards
    from trajgym.trajectory import Run, SessionTree, Stamp

__all__ = ["RunValues", "derive_run", "derive_scope"]

_SESSIONS = 64
"""Sessions of a table, unless a group has more: the arrays of a table cost more than their values
if there are few."""


class RunValues(Closing):
    """The rewards or advantages of a run's turns, in a temporary file; see `derive_run`.

    It takes the place of `Rewards` and `Advantages` in exports, and has no table.
    """

    def __init__(self, deriver: Deriver) -> None:
        self.deriver = deriver
        """Whose values they are."""
        self.lacking: Counter[str] = Counter()
        """Sessions that lack signals that the deriver reads, by what they lack."""
        self.total = 0
        """Number of sessions of sealed groups."""
        self._file = _Scratch(
            "CREATE TABLE found (session TEXT PRIMARY KEY, turns BLOB, spans BLOB, starts BLOB, "
            "ids BLOB)"
        )

    @property
    def kind(self) -> type[Rewards | Advantages]:
        """`Rewards` or `Advantages`."""
        return self._empty.kind

    @property
    def stamp(self) -> Stamp:
        """The deriver and its settings."""
        return self._empty.stamp

    @cached_property
    def _empty(self) -> Rewards | Advantages:
        """The values of no session: their type and stamp are those of all."""
        return self.deriver.derive(self.deriver.table([], []))

    @property
    def complaint(self) -> str:
        """How many sessions lack which signals, as a sentence without an end."""
        counts = "; ".join(f"{n} have {lacks}" for lacks, n in self.lacking.most_common())
        return f"{self.deriver.name}: of {self.total} sessions, {counts}"

    def session(self, session: str) -> SessionValues:
        """Return the values of one session.

        Raises:
            InvalidInput: the run's sealed groups have no such session.
        """
        sql = "SELECT turns, spans, starts, ids FROM found WHERE session = ?"
        for row in self._file.execute(sql, [session]):
            return _unpacked(*row)
        raise InvalidInput(f"session {session} has no {self.kind.__name__.lower()}")

    def sessions(self) -> Iterator[tuple[str, SessionValues]]:
        """Yield the sessions and their values, in the order of their groups."""
        sql = "SELECT session, turns, spans, starts, ids FROM found ORDER BY rowid"
        for name, *row in self._file.execute(sql):
            yield name, _unpacked(*row)

    def close(self) -> None:
        """Delete the file. Idempotent; without it, the file goes with the object."""
        self._file.close()

    def _note(self, tree: SessionTree) -> None:
        if lacks := self.deriver.missing(tree):
            self.lacking[lacks] += 1

    def _derive(self, table: TurnTable) -> None:
        values = self.deriver.derive(table)
        rows = ((name, *_packed(values.session(name))) for name in values.table.sessions)
        self._file.executemany("INSERT INTO found VALUES (?, ?, ?, ?, ?)", rows)

    def __repr__(self) -> str:
        return f"RunValues({self.kind.__name__.lower()} of {self.stamp.deriver!r})"


def derive_run(
    run: Run,
    *derivers: Deriver,
    missing_signals: Literal["error", "zero"] = "error",
) -> list[RunValues]:
    """Return the values of derivers for the sealed groups of a run.

    The run is read once. Sessions are read one at a time, and at most a group's turns are in memory
    as a table, unless a deriver's :attr:`Deriver.scope` is the run. The values are those of
    ``deriver.derive(deriver.table(run.groups(), run.sessions()))``.

    Args:
        run: open. Sessions of open groups, and of no group, have no values.
        *derivers: whose values are returned.
        missing_signals: ``zero`` lets signals that sessions lack count as 0.

    Raises:
        MissingSignals: sessions lack signals that a deriver reads, and the rule is ``error``.
        InvalidInput: a deriver refuses the sessions.
        StoreError: the temporary file can't be written.
        StoreCorrupt: the run is damaged.
    """
    found = [RunValues(deriver) for deriver in derivers]
    sessions = 0

    def noted(trees: Iterable[SessionTree]) -> Iterator[SessionTree]:
        nonlocal sessions
        for tree in trees:
            sessions += 1
            for values in found:
                values._note(tree)
            yield tree

    batches = _Members(run).batches(widest_scope(derivers)) if derivers else iter(())
    for batch in batches:
        table = common_table(derivers, batch.groups, noted(batch.read(run)))
        if missing_signals == "error" and any(values.lacking for values in found):
            continue  # only count: derivers may fail without the signals
        for values in found:
            values._derive(table)
    for values in found:
        values.total = sessions
        if values.lacking and missing_signals == "error":
            raise MissingSignals(values.complaint, values.lacking)
    return found


def derive_scope(run: Run, deriver: Deriver, session: str) -> Rewards | Advantages:
    """Return the values of a session and of those that they depend on, with their table.

    Raises:
        InvalidInput: the session is in no sealed group, or the deriver refuses the sessions.
    """
    members = _Members(run)
    for batch in members.batches(deriver.scope, group_of=session):
        if any(member.session == session for one in batch.groups for member in one.members):
            return deriver.derive(deriver.table(batch.groups, batch.read(run)))
    raise InvalidInput(f"session {session} is in no sealed group")


class _Batch(NamedTuple):
    """Sessions whose values don't depend on others, and their groups."""

    groups: Sequence[Group]

    def read(self, run: Run) -> Iterator[SessionTree]:
        """Yield the sessions that the run has."""
        return run.sessions(member.session for group in self.groups for member in group.members)


class _Members:
    """The sealed groups of a run and their members, in a temporary file.

    A session that several groups name belongs to the last one.
    """

    def __init__(self, run: Run) -> None:
        self._file = _Scratch(
            "CREATE TABLE groups (number INTEGER PRIMARY KEY, id TEXT, task TEXT, planned INTEGER)",
            "CREATE TABLE members (session TEXT PRIMARY KEY, number INTEGER, place INTEGER, "
            "sample INTEGER, left TEXT)",
            "CREATE INDEX members_by_group ON members (number, place)",
        )
        for number, group in enumerate(run.groups()):
            if group.sealed:
                self._add(number, group)

    def _add(self, number: int, group: Group) -> None:
        row = (number, group.id, group.task, group.planned)
        self._file.execute("INSERT INTO groups VALUES (?, ?, ?, ?)", row)
        members = ((m.session, number, at, m.sample, m.left) for at, m in enumerate(group.members))
        self._file.executemany("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?)", members)

    def batches(self, scope: Scope, *, group_of: str | None = None) -> Iterator[_Batch]:
        """Yield the sessions in parts that may be derived apart from each other.

        Args:
            scope: what their values depend on.
            group_of: only the group of this session, if the scope is not the run.
        """
        groups = self._groups(None if scope == "run" else group_of)
        if scope == "run":
            yield _Batch(list(groups))
        elif scope == "group":
            yield from _whole(groups)
        else:
            yield from _whole(part for group in groups for part in _parts(group))

    def _groups(self, session: str | None) -> Iterator[Group]:
        sql = (
            "SELECT number, id, task, planned, session, sample, left FROM members "
            "JOIN groups USING (number) "
            "WHERE ?1 IS NULL OR number = (SELECT number FROM members WHERE session = ?1) "
            "ORDER BY number, place"
        )
        rows = self._file.execute(sql, [session])
        for (_, name, task, planned), own in groupby(rows, key=itemgetter(0, 1, 2, 3)):
            members = [Member(*row[4:]) for row in own]
            yield Group(id=name, task=task, planned=planned, members=members, sealed=True)


def _parts(group: Group) -> Iterator[Group]:
    """Yield a group in parts of so many sessions."""
    members = iter(group.members)
    for part in iter(partial(_taken, members), []):
        yield replace(group, members=part)


def _taken(members: Iterator[Member]) -> list[Member]:
    return list(islice(members, _SESSIONS))


def _whole(groups: Iterable[Group]) -> Iterator[_Batch]:
    """Yield whole groups together that have so many sessions, or a single one that has more."""
    batch: list[Group] = []
    size = 0
    for group in groups:
        if batch and size + len(group.members) > _SESSIONS:
            yield _Batch(batch)
            batch, size = [], 0
        batch.append(group)
        size += len(group.members)
    if batch:
        yield _Batch(batch)


class _Scratch:
    """A database in a temporary file, which SQLite deletes when it is closed."""

    def __init__(self, *statements: str) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", *statements):
            self.execute(statement)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        with _translated():
            return self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with _translated():
            self._connection.executemany(sql, rows)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"values can't be kept in a temporary file: {error}; set TMPDIR to a directory with "
            "enough space",
        ) from error


def _packed(values: SessionValues) -> tuple[Any, ...]:
    turns, spans, starts, ids = values
    if spans is None or ids is None:
        return turns.tobytes(), None, None, None
    return turns.tobytes(), spans.tobytes(), starts.tobytes(), ids.tobytes()


def _unpacked(
    turns: bytes, spans: bytes | None, starts: bytes | None, ids: bytes | None
) -> SessionValues:
    values = np.frombuffer(turns, dtype=np.float64)
    if spans is None or starts is None or ids is None:
        return SessionValues(values, None, np.zeros(values.size + 1, dtype=np.int64), None)
    return SessionValues(
        values,
        np.frombuffer(spans, dtype=np.float64),
        np.frombuffer(starts, dtype=np.int64),
        np.frombuffer(ids, dtype=np.int64).reshape(-1, 3),
    )
