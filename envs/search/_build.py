"""Building an index of passages: streaming, resumable, checked by hash."""

from __future__ import annotations

import itertools
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.search._corpus import CorpusHash
from trajgym.envs.search._errors import IndexMismatch, InvalidCorpus
from trajgym.envs.search._store import FILE, FORMAT, PassageStore, read_meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trajgym.envs.search._engine import Passage

__all__ = ["IndexReport", "build_index", "check_index"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS passages (
    n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL,
    url TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS passages_url ON passages (url) WHERE url != '';
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    title, text, content='passages', content_rowid='n',
    tokenize="porter unicode61 remove_diacritics 2"
);
"""


class IndexReport(NamedTuple):
    """The size of an index, and what this call added."""

    passages: int
    added: int
    """By this call; 0 if the index was complete already."""
    repeated: int
    """Passages that occurred in the sources more than once."""
    hash: str


@dataclass(slots=True)
class _Progress:
    """Progress of a build; written in the same transaction as the passages."""

    read: int = 0
    stored: int = 0
    source: str = ""  # hash of all that was read
    content: str = ""  # hash of what was stored

    def meta(self, state: str) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "state": state,
            "read": self.read,
            "passages": self.stored,
            "source": self.source,
            "hash": self.content,
        }


def build_index(
    passages: Iterable[Passage],
    out: str | Path,
    *,
    on_progress: Callable[[int], None] | None = None,
    batch: int = 5000,
) -> IndexReport:
    """Write passages and their word index into a directory; memory does not grow with them.

    A build that was interrupted resumes: the passages already indexed are read again, and their
    hash must be the same. A finished index is compared with the passages.

    Args:
        passages: in the order that decides ties; :func:`read_passages` reads files.
        out: the index directory, created if missing.
        on_progress: called with the number of passages read so far, after every batch.
        batch: passages that are held in memory and written together.

    Raises:
        IndexMismatch: the directory holds an index of other passages.
        InvalidCorpus: there is no passage, or two different passages have the same id.
    """
    file = Path(out) / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    known = read_meta(file) if file.exists() and file.stat().st_size else {}
    done = _Progress(
        known.get("read", 0), known.get("passages", 0), known.get("source", ""),
        known.get("hash", ""),
    )  # fmt: skip
    stream = iter(passages)
    _skip(stream, done, out, batch, on_progress)
    if known.get("state") == "complete":
        if next(stream, None) is not None:
            raise IndexMismatch(f"{out}: the index is finished, but the sources hold more passages")
        return IndexReport(done.stored, 0, done.read - done.stored, done.content)
    before = done.stored
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_SCHEMA}")
        while fresh := list(itertools.islice(stream, batch)):
            _add(connection, fresh, done)
            if on_progress is not None:
                on_progress(done.read)
        if not done.stored:
            raise InvalidCorpus(f"{out}: the sources hold no passage; there is nothing to index")
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        _write_meta(connection, done.meta("complete"))
        # Readers open the file read-only, which a write-ahead log does not allow on every mount.
        connection.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()
    return IndexReport(done.stored, done.stored - before, done.read - done.stored, done.content)


def check_index(index: str | Path) -> IndexReport:
    """Read every passage of an index and compare them with its hash, and the file with itself.

    Raises:
        IndexMismatch: the index is damaged or was changed; the message names the part.
    """
    store = PassageStore(index)
    found, count = CorpusHash(), 0
    try:
        for passage in store.scan():
            found.add(passage)
            count += 1
        with store.connection(float("inf")) as connection:
            answer = connection.execute("PRAGMA quick_check").fetchone()[0]
    finally:
        store.close()
    if answer != "ok":
        raise IndexMismatch(f"{index}: the file is damaged: {answer}")
    if (count, found.state) != (len(store), store.hash):
        raise IndexMismatch(
            f"{index}: its passages are not those that were indexed; rebuild the index"
        )
    return IndexReport(count, 0, store.meta["read"] - count, store.hash)


def _skip(
    stream: Iterator[Passage],
    done: _Progress,
    out: str | Path,
    batch: int,
    on_progress: Callable[[int], None] | None,
) -> None:
    """Read the passages that are indexed already, and check that they are the same."""
    found = CorpusHash()
    for number, passage in enumerate(itertools.islice(stream, done.read), 1):
        found.add(passage)
        if on_progress is not None and number % batch == 0:
            on_progress(number)
    if found.state != done.source:
        raise IndexMismatch(
            f"{out}: holds an index of other passages; use another directory, or remove this one",
        )


def _add(connection: sqlite3.Connection, batch: Sequence[Passage], done: _Progress) -> None:
    source, content = CorpusHash(done.source), CorpusHash(done.content)
    fresh: dict[str, Passage] = {}
    ids = json.dumps([passage.id for passage in batch])
    known = dict(
        connection.execute(
            "SELECT id, title || char(10) || text FROM passages "
            "WHERE id IN (SELECT value FROM json_each(?))",
            (ids,),
        ),
    )
    for passage in batch:
        source.add(passage)
        text = f"{passage.title}\n{passage.text}"
        if known.setdefault(passage.id, text) != text:
            raise InvalidCorpus(f"the id {passage.id!r} stands for two different passages")
        if known[passage.id] is text:
            fresh[passage.id] = passage
            content.add(passage)
    rows = [(done.stored + i, p.id, p.title, p.text, p.url) for i, p in enumerate(fresh.values())]
    done.read += len(batch)
    done.stored += len(rows)
    done.source, done.content = source.state, content.state
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?)", rows)
        words = [(row[0], row[2], row[3]) for row in rows]
        connection.executemany("INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", words)
        _write_meta(connection, done.meta("building"))
    except BaseException:
        if connection.in_transaction:  # SQLite ends it itself where the disk is full
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _write_meta(connection: sqlite3.Connection, meta: dict[str, Any]) -> None:
    rows = [(key, json.dumps(value)) for key, value in meta.items()]
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
