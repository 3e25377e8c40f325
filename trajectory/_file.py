"""The file that a store writes: its lock, its statements and its transactions."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from trajgym.trajectory._codec import encode
from trajgym.trajectory._database import TURN_BITS, connect_writer, lock_path, translated
from trajgym.trajectory._errors import StoreError, StoreLocked
from trajgym.trajectory._records import Status
from trajgym.trajectory._run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Sink", "Statement", "StoreFile", "Write"]

_log = logging.getLogger(__name__)

Statement: TypeAlias = Literal[
    "task",
    "replace task",
    "group",
    "session",
    "turn",
    "attempt",
    "blob",
    "signals",
    "derived",
    "meta",
]
_SQL: dict[Statement, str] = {
    "task": "INSERT OR IGNORE INTO tasks VALUES (?, ?)",
    "replace task": "INSERT OR REPLACE INTO tasks VALUES (?, ?)",
    "group": "INSERT OR REPLACE INTO groups VALUES (?, ?)",
    "session": "INSERT INTO sessions VALUES (?, ?, ?)",
    "turn": "INSERT INTO turns VALUES (?, ?, ?)",
    "attempt": "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?)",
    "blob": "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)",
    "signals": "INSERT INTO signals (turn, source, body) VALUES (?, ?, ?)",
    "derived": "INSERT OR REPLACE INTO derived VALUES (?, ?, ?)",
    "meta": "INSERT OR REPLACE INTO meta VALUES (?, ?)",
}

_LAST_KEY = f"""
SELECT max(coalesce((SELECT max(key) FROM sessions), 0),
           coalesce((SELECT max(session) FROM attempts), 0),
           coalesce((SELECT max(key) >> {TURN_BITS} FROM turns), 0))
"""  # noqa: S608 - a constant
"""The largest key in use, also by what is left of a session whose record was not written."""


class Write(NamedTuple):
    """One statement and its values."""

    statement: Statement
    values: tuple[Any, ...]


class Sink(Protocol):
    """What takes the writes of a store."""

    last_key: int
    """The largest key of a session that is in use."""

    def commit(self, writes: Sequence[Write]) -> Mapping[int, str]:
        """Make writes durable; blocks. Return why some were not written, by position."""
        ...

    def close(self) -> None:
        """Finish; blocks."""
        ...


class StoreFile:
    """A store's SQLite file, opened for writing by one process.

    Opening it marks the attempts that a killed writer left running as ``interrupted``.

    Args:
        path: the file; created with its directory if missing.
        durability: see :class:`Store`.

    Raises:
        StoreError: see :class:`Store`, with its other errors.
    """

    def __init__(self, path: Path, *, durability: Literal["process", "power"] = "process") -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = _lock(path)
        except OSError as error:
            raise StoreError(f"{path}: can't be written: {error}") from error
        try:
            self._connection = connect_writer(path, power_safe=durability == "power")
        except BaseException:
            os.close(self._lock_descriptor)
            raise
        try:
            with translated(path):
                (self.last_key,) = self._connection.execute(_LAST_KEY).fetchone()
            self._close_interrupted()
        except BaseException:
            self.close()
            raise

    def commit(self, writes: Sequence[Write]) -> Mapping[int, str]:
        """Make writes durable, in one transaction if all can be written; see :class:`Sink`."""
        try:
            self._transaction(writes)
        except sqlite3.Error:
            # A failed write must not roll back the others of its group.
            failed: dict[int, str] = {}
            for at, write in enumerate(writes):
                try:
                    self._transaction([write])
                except sqlite3.Error as error:
                    failed[at] = str(error)
            return failed
        return {}

    def close(self) -> None:
        """Close the file and release the lock; called once."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:  # acknowledged writes are in the WAL file anyway
            _log.warning("%s: no checkpoint at close: %s", self.path, error)
        finally:
            self._connection.close()
            os.close(self._lock_descriptor)

    def _transaction(self, writes: Sequence[Write]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for statement, group in groupby(writes, key=_statement_of):
                self._connection.executemany(_SQL[statement], [write.values for write in group])
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def _close_interrupted(self) -> None:
        writes: list[Write] = []
        with Run(self.path) as run:
            for session, attempt in run.open_attempts():
                attempt.status = Status("interrupted")
                attempt.cause = "the process that recorded it ended"
                attempt.ended_at = time.time()
                values = (run.locate(session), attempt.index, False, encode(attempt))
                writes.append(Write("attempt", values))
        for text in (self.commit(writes) if writes else {}).values():
            raise StoreError(f"{self.path}: not written: {text}")


_statement_of = attrgetter("statement")


def _lock(path: Path) -> int:
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreLocked(
            f"{path}: another process writes this store; wait for it, or write to another file in "
            "the same directory (its files are read as one run)",
        ) from error
    return descriptor
