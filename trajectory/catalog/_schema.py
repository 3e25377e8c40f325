"""The file of a catalogue: where it is, its tables, and when it is made anew."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

from trajgym.trajectory._errors import StoreError

__all__ = ["SESSION_BITS", "TEXT_BITS", "default_path", "open_reader", "open_writer"]

_VERSION = 1
SESSION_BITS = 24
"""A session's key is ``file << SESSION_BITS | its key in that file``."""
TEXT_BITS = 20
"""A text's row is ``session key << TEXT_BITS | index of its first turn``."""

_SCHEMA = """
CREATE TABLE meta     (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE files    (file INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last_id TEXT NOT NULL,
                       session INTEGER NOT NULL, turn INTEGER NOT NULL, turns INTEGER NOT NULL,
                       grp INTEGER NOT NULL, signal INTEGER NOT NULL, alive INTEGER NOT NULL);
CREATE TABLE sessions (key INTEGER PRIMARY KEY, id TEXT NOT NULL, task TEXT NOT NULL,
                       env TEXT NOT NULL, policy TEXT NOT NULL, grp TEXT, sample INTEGER NOT NULL,
                       created REAL NOT NULL, turns INTEGER NOT NULL DEFAULT 0,
                       calls INTEGER NOT NULL DEFAULT 0, failed_calls INTEGER NOT NULL DEFAULT 0,
                       prompt_tokens INTEGER NOT NULL DEFAULT 0,
                       completion_tokens INTEGER NOT NULL DEFAULT 0,
                       exact INTEGER NOT NULL DEFAULT 0, images INTEGER NOT NULL DEFAULT 0,
                       seconds REAL NOT NULL DEFAULT 0, reward REAL,
                       attempts INTEGER NOT NULL DEFAULT 0, scored INTEGER NOT NULL DEFAULT 0,
                       solved INTEGER NOT NULL DEFAULT 0, score REAL,
                       score_sum REAL NOT NULL DEFAULT 0, score_squares REAL NOT NULL DEFAULT 0,
                       status TEXT NOT NULL DEFAULT 'running', cause TEXT NOT NULL DEFAULT '',
                       open INTEGER NOT NULL DEFAULT 1);
CREATE INDEX sessions_by_id ON sessions (id);
CREATE INDEX sessions_by_task ON sessions (task);
CREATE INDEX sessions_by_group ON sessions (grp, attempts, scored, solved, score_sum,
                                            score_squares, turns);
CREATE INDEX sessions_open ON sessions (key) WHERE open;
CREATE TABLE attempts (session INTEGER NOT NULL, number INTEGER NOT NULL, status TEXT NOT NULL,
                       cause TEXT NOT NULL, reason TEXT NOT NULL, score REAL, passed INTEGER,
                       ended REAL, PRIMARY KEY (session, number)) WITHOUT ROWID;
CREATE INDEX attempts_by_status ON attempts (status, reason, session);
CREATE TABLE tools    (session INTEGER NOT NULL, name TEXT NOT NULL, calls INTEGER NOT NULL,
                       failed INTEGER NOT NULL, PRIMARY KEY (session, name)) WITHOUT ROWID;
CREATE INDEX tools_by_name ON tools (name, session, calls, failed);
CREATE TABLE groups   (id TEXT PRIMARY KEY, place INTEGER NOT NULL, task TEXT NOT NULL,
                       planned INTEGER NOT NULL, sealed INTEGER NOT NULL, members INTEGER NOT NULL,
                       left INTEGER NOT NULL);
CREATE VIRTUAL TABLE texts USING fts5 (body, content='', columnsize=0,
                       tokenize="unicode61 remove_diacritics 2 tokenchars '_'");
"""


def default_path(run: Path) -> Path:
    """Return where the catalogue of a run is kept: in the user's cache, named after its path."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    digest = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
    return base / "trajgym" / "catalog" / f"{run.resolve().name}-{digest}.db"


def open_writer(path: Path) -> sqlite3.Connection:
    """Open a catalogue for writing; one that is damaged or of another version is made anew.

    Raises:
        StoreError: the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=60
            )
            try:
                if _prepared(connection):
                    return connection
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    connection.close()
                    raise
            connection.close()
            _remove(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise StoreError(
            f"{path}: the run's catalogue can't be written: {error}; set XDG_CACHE_HOME to a "
            "directory that can be written"
        ) from error
    raise StoreError(f"{path}: not a catalogue that can be written; delete it")


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a catalogue, which has been prepared, for reading beside its writer."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=60
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA cache_size = -65536")  # KiB: lists of large runs read all sessions
    return connection


def _prepared(connection: sqlite3.Connection) -> bool:
    """Create the tables of a new file; return whether the file is of this version."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")  # it can be made again from the run
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables:
            return int(version) == _VERSION
        for statement in filter(str.strip, _SCHEMA.split(";\n")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        return True
    finally:
        connection.execute("COMMIT")


def _remove(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
