"""Reading what a run has gained since the last look, while others write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.trajectory._closing import Closing
from trajgym.trajectory._codec import decode, decode_turn
from trajgym.trajectory._database import SUFFIX, connect_reader, has_writer, translated
from trajgym.trajectory._errors import InvalidInput, StoreCorrupt, StoreError, StoreNotBegun
from trajgym.trajectory._records import Attempt, Group, SessionRecord
from trajgym.trajectory._run import newer_group

if TYPE_CHECKING:
    import os
    import sqlite3

    from trajgym.trajectory._records import Turn

__all__ = ["FollowedRun", "RunChanges"]

_PAGE = 2000
"""Turns that are read at once."""


class RunChanges(NamedTuple):
    """What a run gained between two polls, and how much of it is in progress."""

    sessions: list[SessionRecord]
    """Sessions that began."""
    turns: list[Turn]
    """Turns that were acknowledged, per file in the order of writing."""
    ended: list[Attempt]
    """Attempts that ended."""
    running: int
    """Attempts in progress, of files with a live writer."""
    interrupted: int
    """Attempts without an end whose writer is gone."""
    groups: int
    """All groups so far."""
    sealed: int
    """Groups to which no member will be added."""
    since: list[float]
    """Unix times (s) at which the sessions in progress began."""
    complete: bool
    """False if more turns were there than one poll reads: poll again at once."""


@dataclass(slots=True)
class _File:
    path: Path
    connection: sqlite3.Connection
    session: int = 0
    turn: int = 0
    ended: set[tuple[int, int]] = field(default_factory=set)
    begun: dict[int, float] = field(default_factory=dict)
    """When sessions began whose first attempt was in progress at the last poll, by key."""

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self.connection.execute(sql, values).fetchall()


class FollowedRun(Closing):
    """Follows a run that other processes write. Each poll reads what is new, and nothing twice.

    Files that appear later, such as those of further rollout processes, are followed from then on.
    Use it from one thread.

    Args:
        path: a run directory, or one ``*.sqlite`` file. It may be empty: sessions begin later.

    Raises:
        StoreError: there is no such directory or file.
        StoreCorrupt: a file is damaged or is not a store; also raised by :meth:`poll`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise StoreError(f"{self.path}: no run here")
        self._files: dict[Path, _File] = {}

    def poll(self) -> RunChanges:
        """Return what was written since the last poll."""
        found = RunChanges([], [], [], 0, 0, 0, 0, [], complete=True)
        groups: dict[str, Group] = {}
        for file in self._opened():
            found = _merged(found, file)
            for (body,) in file.query("SELECT body FROM groups"):
                group = decode(Group, body)
                groups[group.id] = newer_group(group, groups.get(group.id))
        sealed = sum(group.sealed for group in groups.values())
        return found._replace(groups=len(groups), sealed=sealed)

    def meta(self, key: str) -> list[str]:
        """Return the values of an entry of the run's metadata, one of each file that has it."""
        sql = "SELECT value FROM meta WHERE key = ?"
        return [value for file in self._opened() for (value,) in file.query(sql, key)]

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files.values():
            file.connection.close()
        self._files.clear()

    def _opened(self) -> list[_File]:
        one = self.path.suffix == SUFFIX
        for path in [self.path] if one else sorted(self.path.glob(f"*{SUFFIX}")):
            if path in self._files:
                continue
            try:
                self._files[path] = _File(path, connect_reader(path))
            except StoreNotBegun:
                if one and not has_writer(path):
                    raise
                # A writer is about to create its tables, or was killed before it did.
        return list(self._files.values())


def _merged(found: RunChanges, file: _File) -> RunChanges:
    # In this order, because others write meanwhile: the turns of an attempt that has ended, and the
    # sessions of all turns, are in the same poll (or, of too many turns, in the next one).
    ended, open_, firsts = _attempts(file)
    turns = _turns(file)
    known = {key: at for key, at in file.begun.items() if key in firsts}
    new = _begun(file)
    file.begun = known | {key: record.created_at for key, record in new}
    alive = open_ > 0 and has_writer(file.path)
    return RunChanges(
        sessions=found.sessions + [record for _, record in new],
        turns=found.turns + turns,
        ended=found.ended + ended,
        running=found.running + (open_ if alive else 0),
        interrupted=found.interrupted + (0 if alive else open_),
        groups=0,
        sealed=0,
        since=found.since + ([file.begun[key] for key in firsts] if alive else []),
        complete=found.complete and len(turns) < _PAGE,
    )


def _begun(file: _File) -> list[tuple[int, SessionRecord]]:
    sql = "SELECT key, body FROM sessions WHERE key > ? ORDER BY key"
    rows = file.query(sql, file.session)
    if rows:
        file.session = rows[-1][0]
    return [(key, decode(SessionRecord, body)) for key, body in rows]


def _turns(file: _File) -> list[Turn]:
    sql = "SELECT rowid, body, tokens FROM turns WHERE rowid > ? ORDER BY rowid LIMIT ?"
    turns = []
    for row, body, tokens in file.query(sql, file.turn, _PAGE):
        try:
            turns.append(decode_turn(body, tokens))
        except InvalidInput as error:
            raise StoreCorrupt(f"{file.path}: turn in row {row}: {error}") from error
        file.turn = row
    return turns


def _attempts(file: _File) -> tuple[list[Attempt], int, list[int]]:
    """Return attempts that ended, how many have not, and the sessions whose first one has not."""
    ended, open_, firsts = [], 0, []
    for session, number, running in file.query("SELECT session, number, running FROM attempts"):
        if running:
            open_ += 1
            if number == 0:
                firsts.append(session)
        elif (session, number) not in file.ended:
            file.ended.add((session, number))
            sql = "SELECT body FROM attempts WHERE session = ? AND number = ?"
            ended += [decode(Attempt, body) for (body,) in file.query(sql, session, number)]
    return ended, open_, firsts
