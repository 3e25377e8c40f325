"""Durable writing of a run: writes are grouped into transactions; each file has one writer."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import math
import os
import sqlite3
import threading
import time
from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from trajgym.trajectory._closing import Closing
from trajgym.trajectory._codec import (
    check_finite,
    encode,
    encode_turn,
    replace_surrogates,
    to_jsonable,
)
from trajgym.trajectory._database import (
    AMENDED,
    OUTCOMES,
    SUFFIX,
    TURN_BITS,
    connect_writer,
    lock_path,
    translated,
)
from trajgym.trajectory._errors import InvalidInput, StoreError, StoreLocked
from trajgym.trajectory._records import (
    Attempt,
    Delivery,
    Group,
    Outcome,
    SessionRecord,
    Status,
    Task,
    Turn,
)
from trajgym.trajectory._run import Run

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from types import TracebackType

__all__ = ["Ack", "Store"]

_log = logging.getLogger(__name__)
_ADD_SIGNALS = "INSERT INTO signals (turn, source, body) VALUES (?, ?, ?)"
_LAZY_SECONDS = 0.05
"""How long a write that nothing waits for is held back, to share a transaction."""


class _Write(NamedTuple):
    sql: str
    values: tuple[Any, ...]
    ack: Ack


class Ack:
    """The pending result of one write: await it or call :meth:`wait`; then the write is durable.

    Cancelling the wait does not cancel the write.
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
            self._store._expedite()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._add(future):
                yield from future
        if self._error is not None:
            raise self._error

    def wait(self, timeout: float = 60.0) -> None:
        """Block until the write is durable.

        Raises:
            StoreError: the write failed, or did not finish within ``timeout`` seconds.
        """
        event = threading.Event()
        self._store.wake()
        if self._add(event) and not event.wait(timeout):
            raise StoreError(f"the store did not write within {timeout} s")
        if self._error is not None:
            raise self._error


class Store(Closing):
    """Appends sessions to a file; acknowledged writes survive SIGKILL.

    Every method that writes returns an :class:`Ack` immediately; a thread groups pending writes
    into transactions. Turns, sessions, signals and blobs are only added; groups, attempts and
    derived values are replaced by their newer state.

    Args:
        path: a run directory, or a file that ends in ``.sqlite`` (one shard of a run).
        durability: with ``process``, acknowledged writes survive the death of the process at any
            moment; with ``power`` also power loss, at the cost of a disk flush per group of writes.

    Raises:
        StoreError: the directory can't be written.
        StoreLocked: this or another process already has the file open for writing.
        StoreCorrupt: the file is damaged or is not a store.
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
        self._run_path = given
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = _lock(self.path)
        except OSError as error:
            raise StoreError(f"{self.path}: can't be written: {error}") from error
        try:
            self._connection = connect_writer(self.path, power_safe=durability == "power")
        except BaseException:
            os.close(self._lock_descriptor)
            raise
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._pending: list[_Write] = []
        self._announced = False
        self._delayed: asyncio.TimerHandle | None = None
        self._closing = False
        self._broken: StoreError | None = None
        self._keys: dict[str, int] = {}
        self._next_turn: dict[str, int] = {}
        self._reader: Run | None = None
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

    def put_task(self, task: Task, *, replace: bool = False) -> Ack:
        """Store a task; a stored task with the same id is kept, unless ``replace``."""
        kind = "REPLACE" if replace else "IGNORE"
        return self._write(f"INSERT OR {kind} INTO tasks VALUES (?, ?)", task.id, encode(task))  # noqa: S608

    def put_group(self, group: Group) -> Ack:
        """Store a group, or its newer state (members, sealed)."""
        body = encode(group)
        return self._write("INSERT OR REPLACE INTO groups VALUES (?, ?)", group.id, body)

    def begin_session(self, record: SessionRecord) -> Ack:
        """Store a session's record and its attempt 0 with status ``running``.

        Raises:
            InvalidInput: the store already has a session with that id.
        """
        body = encode(record)  # first: it cleans the id
        if record.id in self._keys:
            raise InvalidInput(f"session {record.id!r} is in this store already")
        self._keys[record.id] = key = self._next_key
        self._next_key += 1
        self._next_turn[record.id] = 0
        ack = self._write("INSERT INTO sessions VALUES (?, ?, ?)", key, record.id, body)
        self.put_attempt(record.id, Attempt())
        return ack

    def append_turn(self, session: str, turn: Turn) -> Ack:
        """Store a turn. Await the result before passing the observation to the policy.

        Raises:
            InvalidInput: unknown session, or not the next index.
        """
        session = replace_surrogates(session)
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
        """Store an attempt, or its newer state (how it ended).

        Raises:
            InvalidInput: the session is unknown, or its score or details are not finite.
        """
        if attempt.outcome is not None:
            _check_outcome(attempt.outcome, f"session {session!r}, attempt {attempt.index}")
        return self._write(
            "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?)",
            self._key(session),
            attempt.index,
            not attempt.status.ended,
            encode(attempt),
        )

    def put_blob(self, data: bytes, media_type: str) -> tuple[str, Ack]:
        """Store bytes once; return their sha256 (hex) and the pending write."""
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
        """Add an annotator's signals to a recorded turn; readers find them in ``turn.signals``.

        Args:
            session: id of the session.
            turn: index of the turn.
            signals: JSON values by name.
            source: name of the annotator.

        Raises:
            InvalidInput: the session is unknown, or a value is not finite or not JSON.
        """
        where = f"session {session!r}, turn {turn}: signals"
        check_finite(dict(signals), where)
        try:
            body = json.dumps(replace_surrogates(dict(signals)))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{where}: not representable as JSON: {error}") from error
        return self._write(
            _ADD_SIGNALS,
            self._key(session) << TURN_BITS | turn,
            source,
            body.encode(),
        )

    def amend_turn(
        self,
        session: str,
        turn: int,
        *,
        delivery: Delivery | None = None,
        role: str | None = None,
        role_reason: str | None = None,
        agent: str | None = None,
        reward: float | None = None,
    ) -> Ack:
        """Change fields of a recorded turn; readers see the new values.

        The write shares the next transaction, or is made within 50 ms; awaiting the result, or
        calling :meth:`Ack.wait`, makes it at once.

        Args:
            session: id of the session.
            turn: index of the turn.
            delivery: whether its response reached the agent.
            role: the purpose of the call.
            role_reason: why it has this role.
            agent: the agent it belongs to; amend all turns of a chain in the same way.
            reward: a step reward that was not known when the turn was recorded.

        Raises:
            InvalidInput: the session is unknown, or the reward is not finite.
        """
        fields = {
            "delivery": delivery,
            "role": role,
            "role_reason": role_reason,
            "agent": agent,
            "reward": reward,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        if reward is not None and not math.isfinite(reward):
            raise InvalidInput(f"session {session!r}, turn {turn}: reward {reward} is not finite")
        place = self._key(session) << TURN_BITS | turn
        return self._write(_ADD_SIGNALS, place, AMENDED, encode(known), lazy=True)

    def put_derived(self, session: str, name: str, body: bytes) -> Ack:
        """Store a deriver's values for a session under its name; the store does not read them."""
        key = self._keys.get(replace_surrogates(session))
        if key is None:
            key = self._locate(session)  # not kept: values are stored once per session
        return self._write("INSERT OR REPLACE INTO derived VALUES (?, ?, ?)", key, name, body)

    def put_outcomes(self, session: str, name: str, outcomes: Mapping[int, Outcome]) -> Ack:
        """Keep what a later scoring found, beside the recorded outcomes; see :class:`Run`.

        Args:
            session: id of the session.
            name: of the scoring; the same name replaces what it kept before.
            outcomes: by attempt.

        Raises:
            InvalidInput: the session is unknown, or a score or details are not finite.
        """
        for attempt, outcome in outcomes.items():
            _check_outcome(outcome, f"session {session!r}, attempt {attempt}")
        body = {str(attempt): to_jsonable(outcome) for attempt, outcome in outcomes.items()}
        return self.put_derived(session, f"{OUTCOMES}{name}", json.dumps(body).encode())

    def set_meta(self, key: str, value: str) -> Ack:
        """Store an entry of the run's metadata."""
        return self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", key, value)

    # Life cycle ---------------------------------------------------------------------------

    def read(self) -> Run:
        """Open this store for reading while it is being written."""
        return Run(self.path)

    def read_run(self) -> Run:
        """Open the whole run: the directory that was given, with the files of other writers.

        A store that was given as a file is read alone.
        """
        return Run(self._run_path)

    def close(self) -> None:
        """Finish pending writes, close the file and release the lock. Idempotent; blocks."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:  # acknowledged writes are in the WAL file anyway
            _log.warning("%s: no checkpoint at close: %s", self.path, error)
        finally:
            self._connection.close()
            os.close(self._lock_descriptor)

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        await asyncio.shield(asyncio.to_thread(self.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Implementation -----------------------------------------------------------------------

    def _key(self, session: str) -> int:
        session = replace_surrogates(session)
        key = self._keys.get(session)
        if key is None:
            key = self._find(session)
        return key

    def _find(self, session: str) -> int:
        """Look up a session that an earlier process wrote."""
        self._keys[session] = found = self._locate(session)
        self._next_turn[session] = self._lookup.turn_count(session)
        return found

    def _locate(self, session: str) -> int:
        found = self._lookup.locate(session)
        if found is None:
            raise InvalidInput(f"{self.path}: no session {session!r}")
        return found

    @property
    def _lookup(self) -> Run:
        """The reader that looks up sessions; opened once, since that takes longer than a query."""
        with self._mutex:
            if self._reader is None:
                self._reader = self.read()
            return self._reader

    def _write(self, sql: str, *values: Any, lazy: bool = False) -> Ack:
        ack = Ack(self, self._mutex)
        texts = tuple([replace_surrogates(v) if type(v) is str else v for v in values])
        with self._mutex:
            if self._broken is not None:
                raise self._broken
            if self._closing:
                raise StoreError(f"{self.path}: the store is closed")
            self._pending.append(_Write(sql, texts, ack))
        if lazy:
            self._announce_later()
        else:
            self._announce()
        return ack

    def _announce(self) -> None:
        """Wake the writer: at once from a plain thread, at the end of the iteration from a loop.

        Sessions that append in the same iteration of the event loop then share one transaction.
        Otherwise the first one would start a transaction that the others have to wait for.
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

    def _announce_later(self) -> None:
        """Wake the writer in a while, unless another write does so before."""
        if self._announced or self._delayed is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.wake()
            return
        self._delayed = loop.call_later(_LAZY_SECONDS, self.wake)

    def _expedite(self) -> None:
        """Wake the writer now if its wake-up was delayed."""
        if self._delayed is not None:
            self._announce()

    def wake(self) -> None:
        """Wake the writer thread to process pending writes."""
        self._announced = False
        delayed, self._delayed = self._delayed, None
        if delayed is not None:
            delayed.cancel()
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
            # A failed write must not roll back the others of its group.
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
            except RuntimeError:  # that loop and its waiters are gone
                continue

    def _break(self, batch: Sequence[_Write], error: BaseException) -> None:
        self._broken = StoreError(f"{self.path}: the writer died: {error!r}")
        with self._mutex:
            batch = [*batch, *self._pending]
            self._pending = []
        self._settle([w for w in batch if not w.ack.done], self._broken)

    def _close_interrupted(self) -> None:
        """Mark the attempts that a killed process left running as interrupted."""
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
            f"{path}: another process writes this store; wait for it, or write to another file in "
            "the same directory (its files are read as one run)",
        ) from error
    return descriptor


def _check_outcome(outcome: Outcome, where: str) -> None:
    check_finite(outcome.score, f"{where}: score")
    check_finite(outcome.details, f"{where}: details")
