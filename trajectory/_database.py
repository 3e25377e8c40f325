"""The SQLite file of a store: schema, version check and translation of errors."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trajgym.trajectory._errors import (
    StoreCorrupt,
    StoreError,
    StoreNotBegun,
    StoreSchemaMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "AMENDED",
    "OUTCOMES",
    "SCHEMA_VERSION",
    "SUFFIX",
    "TURN_BITS",
    "connect_reader",
    "connect_writer",
    "has_writer",
    "lock_path",
    "translated",
]

SUFFIX = ".sqlite"
AMENDED = "@turn"
"""The ``source`` of rows in ``signals`` that amend a turn's fields instead of adding signals."""
OUTCOMES = "outcomes:"
"""Prefix of the names of derived values that are outcomes of a later scoring."""
SCHEMA_VERSION = 1
TURN_BITS = 20
"""A turn's key is ``session key << TURN_BITS | turn index``; an index finds a session's turns.

The rows themselves are stored in the order of writing. With the key as the primary key, a group of
writes would touch one page per session instead of consecutive pages (measured at 64 sessions: 15
instead of 5 us per turn).
"""

_BUSY_SECONDS = 60.0
"""How long another process may hold a lock that is held for a moment: it may not get the processor.

SQLite locks the file or its log while it creates, recovers, or closes them.
"""
_APPLICATION_ID = 0x54524A47  # "TRJG": marks the file as a store
_SCHEMA = """
CREATE TABLE meta     (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks    (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE groups   (id TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE sessions (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, body BLOB NOT NULL);
CREATE TABLE attempts (session INTEGER NOT NULL, number INTEGER NOT NULL, running INTEGER NOT NULL,
                       body BLOB NOT NULL, PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE TABLE turns    (key INTEGER NOT NULL, body BLOB NOT NULL, tokens BLOB);
CREATE UNIQUE INDEX turns_by_key ON turns (key);
CREATE TABLE signals  (key INTEGER PRIMARY KEY, turn INTEGER NOT NULL, source TEXT NOT NULL,
                       body BLOB NOT NULL);
CREATE INDEX signals_of_turn ON signals (turn);
CREATE TABLE derived  (session INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
                       PRIMARY KEY (session, name)) WITHOUT ROWID;
CREATE TABLE blobs    (hash TEXT PRIMARY KEY, media_type TEXT NOT NULL, data BLOB NOT NULL);
"""


_DAMAGED = ("no such table", "no such column", "malformed JSON")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into store errors that name the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if any(sign in str(error) for sign in _DAMAGED):
            raise StoreCorrupt(f"{path}: not a trajgym store, or damaged: {error}") from error
        raise StoreError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreCorrupt(
            f"{path}: damaged or not a trajgym store ({error}); restore a copy, or read what is "
            "left with sqlite3's .recover",
        ) from error


def connect_writer(path: Path, *, power_safe: bool) -> sqlite3.Connection:
    """Open or create the file for writing. The caller holds the lock."""
    with translated(path):
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
        )
        try:
            _check_length(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if power_safe else 'NORMAL'}")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            if _tables(connection) == 0:
                connection.executescript(
                    f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID};"
                    f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;",
                )
            _check_version(connection, path)
            _take_over_log(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open the file for reading, also while another process writes it."""
    if not path.is_file():
        raise StoreError(f"{path}: no such store")
    with translated(path):
        uri = f"{path.resolve().as_uri()}?mode=ro"
        try:
            return _opened(uri, path)
        except sqlite3.OperationalError:
            if _log_length(path):
                raise
            if os.access(
                path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids
            ):
                raise
            # SQLite can't create its shared-memory index in a read-only directory.
            return _opened(f"{uri}&immutable=1", path)


def _opened(uri: str, path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
    )
    try:
        _check_length(connection, path)
        _check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # one moment, in case a writer is creating the tables
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = _tables(connection)
    connection.execute("ROLLBACK")
    if not (application or version or tables):
        raise StoreNotBegun(f"{path}: an empty file, whose writer has not created its tables")
    if application != _APPLICATION_ID:
        raise StoreCorrupt(f"{path}: a SQLite file, but not a trajgym store")
    if version != SCHEMA_VERSION:
        raise StoreSchemaMismatch(
            f"{path}: written with schema {version}, this library reads {SCHEMA_VERSION}; "
            f"{'upgrade trajgym' if version > SCHEMA_VERSION else 'no migration is needed yet'}",
        )


def _tables(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _check_length(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a truncated file; SQLite itself would fail only when it reads the missing pages.

    Pages that the header counts may be missing from the file while they are in the write-ahead
    log. A checkpoint copies them in order, the header first, and may be in progress or may have
    been killed half-way. SQLite reads these pages from the log.
    """
    for _ in range(2):  # again, in case a checkpoint finished between the two measurements
        length, expected = _lengths(connection, path)
        if length >= expected or _log_length(path):
            return
    raise _truncated(path, length, expected)


def _take_over_log(connection: sqlite3.Connection, path: Path) -> None:
    """Checkpoint the log that a killed writer left, and check the file's length again."""
    if not _log_length(path):
        return
    busy, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    length, expected = _lengths(connection, path)
    if not busy and pages == copied and length < expected:
        raise _truncated(path, length, expected)


def _truncated(path: Path, length: int, expected: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path}: truncated: {length} of {expected} bytes; restore a copy, or read what is left "
        "with sqlite3's .recover",
    )


def _lengths(connection: sqlite3.Connection, path: Path) -> tuple[int, int]:
    """Return the file's length, and the length that its header states.

    The file is not opened for it: closing it would release the locks (``fcntl``) of all connections
    of this process, and a writer elsewhere would then delete the log that they read.
    """
    try:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return _lengths_of_damaged(path)
    return path.stat().st_size, pages * size


def _lengths_of_damaged(path: Path) -> tuple[int, int]:
    """Return the same of a file that SQLite refuses, from its bytes."""
    if not path.exists() or path.stat().st_size == 0:
        return 0, 0
    with path.open("rb") as file:
        header = file.read(100)
    if not header.startswith(b"SQLite format 3\0"):
        raise StoreCorrupt(f"{path}: not a trajgym store")
    if len(header) < 100:
        return len(header), 100
    page = struct.unpack(">H", header[16:18])[0]
    pages = struct.unpack(">I", header[28:32])[0]
    return path.stat().st_size, pages * (65536 if page == 1 else page)


def _log_length(path: Path) -> int:
    log = path.with_name(path.name + "-wal")
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def lock_path(path: Path) -> Path:
    """Return the file that the writer keeps locked while it runs."""
    return path.with_name(path.name + ".lock")


def has_writer(path: Path) -> bool:
    """Return whether a living process writes this store now."""
    try:
        descriptor = os.open(lock_path(path), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
