"""Writing selected sessions of other runs into a new one, as they are stored."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trajgym.trajectory._codec import encode
from trajgym.trajectory._database import SUFFIX, TURN_BITS, connect_writer, translated
from trajgym.trajectory._errors import InvalidInput, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from trajgym.trajectory._records import Group, SessionRecord
    from trajgym.trajectory.datasets._source import Place, SessionRows, Source

__all__ = ["Copy"]

_HASH = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_BATCH = 256
"""Sessions per transaction."""


class Copy:
    """A run that is being made; it appears in its directory when the ``with`` block succeeds.

    Turns, tokens, signals, derived values, later outcomes and blobs are copied byte by byte.

    Args:
        out: directory of the new run, created if missing.

    Raises:
        InvalidInput: there is a run already.
        StoreError: it can't be written.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.path = Path(out)
        self.sessions = 0
        self.tasks = 0
        self.groups = 0
        self._file = self.path / f"store{SUFFIX}"
        self._part = self.path / f".store-{os.getpid()}-{id(self):x}.part"
        if next(iter(self.path.glob(f"*{SUFFIX}")), None) is not None:
            raise InvalidInput(f"{out}: there is a run already; choose another directory")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{out}: can't be written: {error}") from error
        self._connection = connect_writer(self._part, power_safe=False)
        self._write("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            try:
                if kind is None:
                    self._write("COMMIT")
                    self._write("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._connection.close()
            if kind is None:
                self._publish()
        finally:
            for suffix in ("", "-wal", "-shm"):
                self._part.with_name(self._part.name + suffix).unlink(missing_ok=True)

    def _publish(self) -> None:
        descriptor = os.open(self._part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(self._part, self._file)  # unlike a rename, it replaces nothing
        except FileExistsError as error:
            raise InvalidInput(f"{self.path}: another process made a run there") from error

    def add_session(self, source: Source, place: Place, record: SessionRecord) -> None:
        """Copy a session; its record may have other ids than the place's."""
        rows = source.rows(place)
        task = source.task_body(place.record.task)
        self.add_task(task, place.record.task)
        if source.has_blobs:
            texts = [body for _, *parts in rows.turns for body in parts] + [task]
            texts += [row[-1] for table in rows[1:] for row in table]
            self._blobs(source, {name for text in texts for name in _hashes(text)})
        self.write_session(record, rows)

    def write_session(self, record: SessionRecord, rows: SessionRows) -> None:
        """Write a session.

        Raises:
            InvalidInput: there is a session of that id.
        """
        self.sessions += 1
        new = self.sessions
        first = new << TURN_BITS
        if self._found("SELECT 1 FROM sessions WHERE id = ?", record.id) is not None:
            raise InvalidInput(f"two sessions would have the id {record.id!r}")
        self._write("INSERT INTO sessions VALUES (?, ?, ?)", new, record.id, encode(record))
        self._many(
            "INSERT INTO turns VALUES (?, ?, ?)",
            ((first + at, body, tokens) for at, body, tokens in rows.turns),
        )
        self._many(
            "INSERT INTO signals (turn, source, body) VALUES (?, ?, ?)",
            ((first + at, name, body) for at, name, body in rows.signals),
        )
        self._many(
            "INSERT INTO attempts VALUES (?, ?, ?, ?)", ((new, *row) for row in rows.attempts)
        )
        self._many("INSERT INTO derived VALUES (?, ?, ?)", ((new, *row) for row in rows.derived))
        if new % _BATCH == 0:
            self._write("COMMIT")
            self._write("BEGIN")

    def add_blob(self, name: str, media_type: str, data: bytes) -> None:
        """Write stored bytes under their sha256 (hex)."""
        self._write("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", name, media_type, data)

    def _blobs(self, source: Source, names: Iterable[str]) -> None:
        for name in sorted(names):
            if self._found("SELECT 1 FROM blobs WHERE hash = ?", name) is not None:
                continue
            for shard in source.shards:
                rows = shard.query("SELECT hash, media_type, data FROM blobs WHERE hash = ?", name)
                self._many("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", rows)

    def add_task(self, body: bytes | None, task_id: str) -> None:
        """Copy a task, if it is there.

        Raises:
            InvalidInput: the new run has another task of that id.
        """
        if body is None:
            return
        known = self._found("SELECT body FROM tasks WHERE id = ?", task_id)
        if known is None:
            self.tasks += 1
            self._write("INSERT INTO tasks VALUES (?, ?)", task_id, body)
        elif known[0] != body:
            raise InvalidInput(
                f"task {task_id!r} has other contents in another of these runs: their sessions "
                "would be mixed; rename one of the tasks",
            )

    def add_group(self, group: Group) -> None:
        """Store a group."""
        self.groups += 1
        self._write("INSERT OR IGNORE INTO groups VALUES (?, ?)", group.id, encode(group))

    def set_meta(self, key: str, value: str) -> None:
        """Store an entry of the metadata."""
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    def _write(self, sql: str, *values: Any) -> None:
        with translated(self._part):
            self._connection.execute(sql, values)

    def _many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with translated(self._part):
            self._connection.executemany(sql, rows)

    def _found(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        with translated(self._part):
            row: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
            return row


def _hashes(part: bytes | None) -> list[str]:
    return [name.decode() for name in _HASH.findall(part or b"")]
