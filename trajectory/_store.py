"""The store's writing end: durable, grouped, one writer per file."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from trajgym.trajectory._codec import encode, encode_turn
from trajgym.trajectory._database import (
    SUFFIX,
    TURN_BITS,
    connect_writer,
    lock_path,
    translated,
)
from trajgym.trajectory._errors import InvalidInput, StoreError, StoreLocked
from trajgym.trajectory._records import Attempt, Group, SessionRecord, Status, Task, Turn
from trajgym.trajectory._run import Run

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import TracebackType

__all__ = ["Ack", "Store"]

_log = logging.getLogger(__name__)


class _Write(NamedTuple):
    sql: str
    values: tuple[Any, ...]
    ack: Ack


class Ack:
    """The promise of one write: await it, or :meth:`wait` for it; then it is durable.

    A cancelled waiter does not cancel the write.
    """

    __slots__ = ("_done", "_error", "_lock", "_store", "_waiters")

    def __init__(self, store: Store, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock
        self._done = False
        self._error: StoreError | None = None
        self._waiters: list[asyncio.Future[None] | threading.Event] = []

    @property
    def done(self) -> bool:
        """True once the write is durable or has failed."""
        return self._done

    def _add(self, waiter: asyncio.Future[None] | threading.Event) -> bool:
        with self._lock:
            if not self._done:
                self._waiters.append(waiter)
            return not self._done

    def __await__(self) -> Generator[Any, None, None]:
        if not self._done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._add(future):
                yield from future
        if self._error is not None:
            raise self._error

    def wait(self, timeout: float = 60.0) -> None:
        """Block until the write is durable.

        Raises:
            StoreError: it failed, or ``timeout`` seconds passed.
        """
        event = threading.Event()
        self._store.wake()
        if self._add(event) and not event.wait(timeout):
            raise StoreError(f"the store did not write within {timeout} s")
        if self._error is not None:
            raise self._error


class Store:
    """Writes sessions to a file, append-only, so that what it acknowledged survives SIGKILL.

    Every method that writes returns an :class:`Ack` at once; a thread of the store groups waiting
    writes into transactions. Turns, sessions, signals and blobs are only ever added; a group's and
    an attempt's state and derived values are replaced by their newer state.

    Args:
        path: a run directory, or a file that ends in ``.sqlite`` (one shard of a run).
        durability: ``process`` survives the death of the process at any moment; ``power`` also
            survives power loss, at the price of a disk flush per group of writes.

    Raises:
        StoreLocked: another process, or this one, writes the same file.
        StoreCorrupt: the file is damaged or something else.
        StoreSchemaMismatch: the file needs another version of this library.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["process", "power"] = "process",
    ) -> None:
        given = Path(path)
        self.path = given if given.suffix == SUFFIX else given / f"store{SUFFIX}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_descriptor = _lock(self.path)
        try:
            self._connection = connect_writer(self.path, power_safe=durability == "power")
        except BaseException:
            os.close(self._lock_descriptor)
            raise
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._pending: list[_Write] = []
        self._announced = False
        self._closing = False
        self._broken: StoreError | None = None
        self._keys: dict[str, int] = {}
        self._next_turn: dict[str, int] = {}
        self._thread = threading.Thread(target=self._write_loop, name="trajgym-store", daemon=True)
        try:
            with translated(self.path):
                last = self._connection.execute("SELECT max(key) FROM sessions").fetchone()[0]
            self._next_key = (last or 0) + 1
            self._thread.start()
            self._close_interrupted()
        except BaseException:
            self.close()
            raise

    # Writing ------------------------------------------------------------------------------

    def put_task(self, task: Task) -> Ack:
        """Keep a task; the same id again must be the same task and is ignored."""
        return self._write("INSERT OR IGNORE INTO tasks VALUES (?, ?)", task.id, encode(task))

    def put_group(self, group: Group) -> Ack:
        """Keep a group, or its newer state (members, sealed)."""
        return self._write("INSERT OR REPLACE INTO groups VALUES (?, ?)", group.id, encode(group))

    def begin_session(self, record: SessionRecord) -> Ack:
        """Keep a session's head and its attempt 0, running.

        Raises:
            InvalidInput: a session of that id was begun here before.
        """
        if record.id in self._keys:
            raise InvalidInput(f"session {record.id!r} is in this store already")
        self._keys[record.id] = key = self._next_key
        self._next_key += 1
        self._next_turn[record.id] = 0
        ack = self._write("INSERT INTO sessions VALUES (?, ?, ?)", key, record.id, encode(record))
        self.put_attempt(record.id, Attempt())
        return ack

    def append_turn(self, session: str, turn: Turn) -> Ack:
        """Keep a turn. Await the result before the policy sees the observation.

        Raises:
            InvalidInput: unknown session, or not the next index.
        """
        key = self._key(session)
        if turn.index != self._next_turn[session] or turn.index >= 1 << TURN_BITS:
            raise InvalidInput(
                f"session {session!r}: turn {turn.index} is not next; expected "
                f"{self._next_turn[session]}",
            )
        body, tokens = encode_turn(turn)
        self._next_turn[session] += 1
        return self._write(
            "INSERT INTO turns VALUES (?, ?, ?)",
            key << TURN_BITS | turn.index,
            body,
            tokens,
        )

    def put_attempt(self, session: str, attempt: Attempt) -> Ack:
        """Keep an attempt, or its newer state (how it ended)."""
        return self._write(
            "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?)",
            self._key(session),
            attempt.index,
            not attempt.status.ended,
            encode(attempt),
        )

    def put_blob(self, data: bytes, media_type: str) -> tuple[str, Ack]:
        """Keep bytes once; return their sha256 (hex) and the promise."""
        name = hashlib.sha256(data).hexdigest()
        sql = "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)"
        return name, self._write(sql, name, media_type, data)

    def add_signals(
        self,
        session: str,
        turn: int,
        signals: Mapping[str, Any],
        *,
        source: str,
    ) -> Ack:
        """Add an annotator's findings to a recorded turn; readers see them in ``turn.signals``.

        Args:
            session: id of the session.
            turn: index of the turn.
            signals: JSON values by name.
            source: which annotator says so.
        """
        return self._write(
            "INSERT INTO signals (turn, source, body) VALUES (?, ?, ?)",
            self._key(session) << TURN_BITS | turn,
            source,
            json.dumps(dict(signals), allow_nan=False).encode(),
        )

    def put_derived(self, session: str, name: str, body: bytes) -> Ack:
        """Keep what a deriver computed for a session under its name; the store does not read it."""
        return self._write(
            "INSERT OR REPLACE INTO derived VALUES (?, ?, ?)",
            self._key(session),
            name,
            body,
        )

    def set_meta(self, key: str, value: str) -> Ack:
        """Keep a fact about the run."""
        return self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    # Life cycle ---------------------------------------------------------------------------

    def read(self) -> Run:
        """Open this store for reading beside the writer."""
        return Run(self.path)

    def close(self) -> None:
        """Write what is waiting, close the file and free the lock. Idempotent; blocks."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:  # everything acknowledged is in the WAL file all the same
            _log.warning("%s: no checkpoint at close: %s", self.path, error)
        finally:
            self._connection.close()
            os.close(self._lock_descriptor)

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        await asyncio.shield(asyncio.to_thread(self.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Inside -------------------------------------------------------------------------------

    def _key(self, session: str) -> int:
        key = self._keys.get(session)
        if key is None:
            key = self._find(session)
        return key

    def _find(self, session: str) -> int:
        """Look up a session that an earlier process wrote."""
        with self.read() as run:
            found = run.locate(session)
            if found is None:
                raise InvalidInput(f"{self.path}: no session {session!r}")
            self._keys[session] = found
            self._next_turn[session] = run.turn_count(session)
        return found

    def _write(self, sql: str, *values: Any) -> Ack:
        ack = Ack(self, self._mutex)
        with self._mutex:
            if self._broken is not None:
                raise self._broken
            if self._closing:
                raise StoreError(f"{self.path}: the store is closed")
            self._pending.append(_Write(sql, values, ack))
        self._announce()
        return ack

    def _announce(self) -> None:
        """Wake the writer: at once for a plain thread, at the end of this round for a loop.

        Sessions that append in the same round of the loop then share one transaction, instead of
        the first of them taking the writer away from the others.
        """
        if self._announced:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.wake()
            return
        self._announced = True
        loop.call_soon(self.wake)

    def wake(self) -> None:
        """Let the writer look for waiting writes now."""
        self._announced = False
        with self._wake:
            self._wake.notify()

    def _write_loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._closing)
                batch, self._pending = self._pending, []
                if not batch:
                    return
            try:
                self._commit(batch)
            except BaseException as error:  # boundary: a dead writer must not leave waiters behind
                self._break(batch, error)
                raise

    def _commit(self, batch: Sequence[_Write]) -> None:
        try:
            self._transaction(batch)
        except sqlite3.Error:
            # One bad write must not take its neighbours along.
            for write in batch:
                try:
                    self._transaction([write])
                except sqlite3.Error as error:
                    self._settle([write], StoreError(f"{self.path}: not written: {error}"))
                else:
                    self._settle([write])
        else:
            self._settle(batch)

    def _transaction(self, batch: Sequence[_Write]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for sql, writes in groupby(batch, key=_sql_of):
                self._connection.executemany(sql, [write.values for write in writes])
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def _settle(self, writes: Sequence[_Write], error: StoreError | None = None) -> None:
        futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        with self._mutex:
            for write in writes:
                ack = write.ack
                ack._error = error
                ack._done = True
                for waiter in ack._waiters:
                    if isinstance(waiter, threading.Event):
                        waiter.set()
                    else:
                        futures[waiter.get_loop()].append(waiter)
        for loop, waiting in futures.items():
            try:
                loop.call_soon_threadsafe(_resolve, waiting)
            except RuntimeError:  # that loop has ended: nobody waits there any more
                continue

    def _break(self, batch: Sequence[_Write], error: BaseException) -> None:
        self._broken = StoreError(f"{self.path}: the writer died: {error!r}")
        with self._mutex:
            batch = [*batch, *self._pending]
            self._pending = []
        self._settle([w for w in batch if not w.ack.done], self._broken)

    def _close_interrupted(self) -> None:
        """Give the attempts that a killed process left running their true status."""
        with self.read() as run:
            left = [(s, a) for s, a in run.open_attempts()]
        for session, attempt in left:
            attempt.status = Status("interrupted")
            attempt.cause = "the process that recorded it ended"
            attempt.ended_at = time.time()
            self.put_attempt(session, attempt).wait()


_sql_of = attrgetter("sql")


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _lock(path: Path) -> int:
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreLocked(
            f"{path}: another process writes this store; wait for it, or give this one a file of "
            "its own in the same directory (several files read as one run)",
        ) from error
    return descriptor
