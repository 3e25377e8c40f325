"""The passages of an index, in one SQLite file that every engine of the index shares."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.search._engine import Passage
from trajgym.envs.search._errors import IndexMismatch, SearchUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["FILE", "FORMAT", "PassageStore", "read_meta"]

FILE = "passages.sqlite"
FORMAT = 1
_KEPT = 20_000  # passages
_STEPS = 10_000  # instructions of SQLite between two checks of the deadline
_COLUMNS = "n, id, title, text, url"
_ALL = f"SELECT {_COLUMNS} FROM passages ORDER BY n"  # noqa: S608 - fixed column names


class PassageStore:
    """Reads passages by row or id. Safe between threads: each use takes a connection of a pool.

    Args:
        index: the index directory.

    Raises:
        IndexMismatch: there is no finished index.
    """

    def __init__(self, index: str | Path) -> None:
        self.path = Path(index) / FILE
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._kept: dict[int, Passage] = {}
        self.meta = read_meta(self.path)
        if self.meta.get("state") != "complete":
            raise IndexMismatch(
                f"{index}: the index is not finished; run `trajgym search index` again to go on",
            )

    def __len__(self) -> int:
        return int(self.meta["passages"])

    @property
    def hash(self) -> str:
        """Hash of all passages, in order."""
        return str(self.meta["hash"])

    @contextmanager
    def connection(self, seconds: float) -> Iterator[sqlite3.Connection]:
        """Provide a connection whose statements are interrupted after a number of seconds.

        Raises:
            SearchUnavailable: a statement took too long, or the file can't be read.
        """
        deadline = time.monotonic() + seconds
        connection: sqlite3.Connection | None = None
        try:
            connection = self._take()
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            yield connection
        except sqlite3.Error as error:
            late = time.monotonic() > deadline
            why = f"no answer within {seconds:g} s" if late else str(error)
            raise SearchUnavailable(f"index {self.path.parent}: {why}") from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        return sqlite3.connect(address, uri=True, check_same_thread=False)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @property
    def kept(self) -> Mapping[int, Passage]:
        """The passages that are in memory, by row."""
        return self._kept

    def by_rows(self, rows: Sequence[int], seconds: float = 30.0) -> dict[int, Passage]:
        """Return passages by row number, from 0; the last ones read are kept in memory."""
        kept = self._kept
        found = {row: passage for row in rows if (passage := kept.get(row)) is not None}
        if len(found) < len(rows):
            missing = [row for row in rows if row not in found]
            read = dict(self._select("n", missing, seconds))
            if len(kept) + len(read) > _KEPT:
                kept = {}
            kept.update(read)
            self._kept = kept
            found.update(read)
        return found

    def by_ids(self, ids: Sequence[str], seconds: float = 30.0) -> list[Passage | None]:
        """Return passages by id or URL."""
        found = {passage.id: passage for _, passage in self._select("id", ids, seconds)}
        missing = [name for name in ids if name not in found]
        for _, passage in self._select("url", missing, seconds):
            found.setdefault(passage.url, passage)
        return [found.get(name) for name in ids]

    def scan(self) -> Iterator[Passage]:
        """Yield every passage, in order."""
        with self.connection(float("inf")) as connection:
            for row in connection.execute(_ALL):
                yield Passage(*row[1:])

    def close(self) -> None:
        """Close the idle connections, and those in use when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _select(
        self, column: str, keys: Sequence[int] | Sequence[str], seconds: float
    ) -> list[tuple[int, Passage]]:
        if not keys:
            return []
        # json_each takes any number of keys in one bound parameter.
        query = (
            f"SELECT {_COLUMNS} FROM passages "  # noqa: S608 - fixed column names
            f"WHERE {column} IN (SELECT value FROM json_each(?)) AND {column} != ''"
        )
        wanted = json.dumps([int(k) if column == "n" else str(k) for k in keys])
        with self.connection(seconds) as connection:
            return [(row[0], Passage(*row[1:])) for row in connection.execute(query, (wanted,))]


def read_meta(file: Path) -> dict[str, Any]:
    """Return the metadata of an index.

    Raises:
        IndexMismatch: it is not an index, has another format, or is not readable by this user.
    """
    try:
        with file.open("rb"):
            pass
    except PermissionError as error:
        raise IndexMismatch(
            f"{file}: user {os.geteuid()} may not read it; give the folder and its files read "
            "rights (a container serves as a user of its own)",
        ) from error
    except OSError:
        raise IndexMismatch(
            f"{file.parent}: no index here; make one with `trajgym search index`",
        ) from None
    try:
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute("SELECT key, value FROM meta").fetchall()
        finally:
            connection.close()
        meta = {key: json.loads(value) for key, value in rows}
    except (sqlite3.Error, ValueError) as error:
        raise IndexMismatch(f"{file}: not an index of passages: {error}") from error
    if meta.get("format") != FORMAT:
        raise IndexMismatch(
            f"{file}: index format {meta.get('format')}, this version reads {FORMAT}; rebuild it",
        )
    return meta
