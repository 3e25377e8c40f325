"""Durable writing of a run: writes are grouped into transactions; each file has one writer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from trajgym.trajectory._closing import Closing
from trajgym.trajectory._codec import (
    check_finite,
    encode,
    encode_turn,
    replace_surrogates,
    to_jsonable,
)
from trajgym.trajectory._database import AMENDED, OUTCOMES, SUFFIX, TURN_BITS
from trajgym.trajectory._errors import InvalidInput, StoreError
from trajgym.trajectory._file import StoreFile, Write
from trajgym.trajectory._records import (
    Attempt,
    Delivery,
    Group,
    Outcome,
    SessionRecord,
    Task,
    Turn,
)
from trajgym.trajectory._run import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Mapping, Sequence
    from types import TracebackType

    from trajgym.trajectory._file import Sink, Statement
    from trajgym.trajectory._tree import SessionTree

__all__ = ["Ack", "Store"]

_LAZY_SECONDS = 0.05
"""How long a write that nothing waits for is held back, to share a transaction."""


class Ack:
    """The pending result of one write: await it or call :meth:`wait`; then the write is durable.

    Cancelling the wait does not cancel the write. If it fails and nothing has asked for its result,
    closing the store raises the error.
    """

    __slots__ = ("_done", "_earlier", "_error", "_later", "_lock", "_store", "_waiters")

    def __init__(self, store: Store, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock
        self._done = False
        self._error: StoreError | None = None
        self._earlier: tuple[Ack, ...] = ()
        self._later: Ack | None = None
        self._waiters: list[asyncio.Future[None] | threading.Event] = []

    @property
    def done(self) -> bool:
        """True once the write is durable or has failed."""
        return self._done

    @property
    def error(self) -> StoreError | None:
        """Why the write failed, or one that it refers to; None if that is not (yet) so."""
        if self._error is not None:
            self._store._unreported.pop(self, None)
            return self._error
        return next((error for one in self._earlier if (error := one.error)), None)

    def after(self, *earlier: Ack) -> Ack:
        """Return this write, which fails if an earlier one fails: it refers to what that stores.

        On a full disk, a large write can fail and a small one that comes after it succeed.

        Args:
            earlier: writes that were passed to the same store before this one.
        """
        self._earlier += earlier
        for one in earlier:
            one._later = self
        return self

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
        self._check()

    def wait(self, timeout: float = 60.0) -> None:
        """Block until the write is durable.

        Raises:
            StoreError: the write failed, or did not finish within ``timeout`` seconds.
        """
        event = threading.Event()
        self._store.wake()
        if self._add(event) and not event.wait(timeout):
            raise StoreError(f"the store did not write within {timeout} s")
        self._check()

    def _check(self) -> None:
        if (self._error is not None or self._earlier) and (error := self.error) is not None:
            raise error

    @property
    def _asked(self) -> bool:
        """Whether a caller waits for the result, or did until it was cancelled."""
        return bool(self._waiters) or (self._later is not None and self._later._asked)


class Store(Closing):
    """Appends sessions to a file; acknowledged writes survive SIGKILL.

    Every method that writes returns an :class:`Ack` immediately; a thread groups pending writes
    into transactions. Turns, sessions, signals and blobs are only added; groups, attempts and
    derived values are replaced by their newer state.

    Args:
        path: a run directory, or a file that ends in ``.sqlite`` (one shard of a run).
        durability: with ``process``, acknowledged writes survive the death of the process at any
            moment; with ``power`` also power loss, at the cost of a disk flush per group of writes.
        sink: takes the writes instead of a file of this machine; :meth:`read` then has no file.

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
        sink: Sink | None = None,
    ) -> None:
        given = Path(path)
        self.path = given if given.suffix == SUFFIX else given / f"store{SUFFIX}"
        self._run_path = given
        self._sink = sink or StoreFile(self.path, durability=durability)
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._pending: list[tuple[Write, Ack]] = []
        self._announced = False
        self._delayed: asyncio.TimerHandle | None = None
        self._closing = False
        self._broken: StoreError | None = None
        self._unreported: dict[Ack, None] = {}  # failed, and nothing has asked for it
        self._keys: dict[str, int] = {}
        self._next_turn: dict[str, int] = {}
        self._reader: Run | None = None
        self._next_key = self._sink.last_key + 1
        self._thread = threading.Thread(target=self._write_loop, name="trajgym-store", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.close()
            raise

    # Writing ------------------------------------------------------------------------------

    def put_task(self, task: Task, *, replace: bool = False) -> Ack:
        """Store a task; a stored task with the same id is kept, unless ``replace``."""
        return self._write("replace task" if replace else "task", task.id, encode(task))

    def put_group(self, group: Group) -> Ack:
        """Store a group, or its newer state (members, sealed)."""
        return self._write("group", group.id, encode(group))

    def begin_session(self, record: SessionRecord) -> Ack:
        """Store a session's record and its attempt 0 with status ``running``.

        If the write fails, the store does not know the session, and it can be begun again.

        Raises:
            InvalidInput: the store already has a session with that id.
        """
        body = encode(record)  # first: it cleans the id
        if record.id in self._keys:
            raise InvalidInput(f"session {record.id!r} is in this store already")
        self._keys[record.id] = key = self._next_key
        self._next_key += 1
        self._next_turn[record.id] = 0
        ack = self._write("session", key, record.id, body)
        return ack.after(self.put_attempt(record.id, Attempt()))

    def put_session(self, tree: SessionTree) -> Ack:
        """Store a whole session: its record, its turns and its attempts.

        Raises:
            InvalidInput: the store has a session with that id, or a turn or an attempt is invalid.
        """
        session = tree.record.id
        acks = [self.begin_session(tree.record)]
        acks += [self.append_turn(session, turn) for turn in tree.turns]
        acks += [self.put_attempt(session, attempt) for attempt in tree.attempts]
        return acks.pop().after(*acks)

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
        return self._write("turn", key << TURN_BITS | turn.index, body, tokens)

    def put_attempt(self, session: str, attempt: Attempt) -> Ack:
        """Store an attempt, or its newer state (how it ended).

        Raises:
            InvalidInput: the session is unknown, or its score or details are not finite.
        """
        if attempt.outcome is not None:
            _check_outcome(attempt.outcome, f"session {session!r}, attempt {attempt.index}")
        return self._write(
            "attempt",
            self._key(session),
            attempt.index,
            not attempt.status.ended,
            encode(attempt),
        )

    def put_blob(self, data: bytes, media_type: str) -> tuple[str, Ack]:
        """Store bytes once; return their sha256 (hex) and the pending write."""
        name = hashlib.sha256(data).hexdigest()
        return name, self._write("blob", name, media_type, data)

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
        place = self._key(session) << TURN_BITS | turn
        return self._write("signals", place, source, body.encode())

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
        return self._write("signals", place, AMENDED, encode(known), lazy=True)

    def put_derived(self, session: str, name: str, body: bytes) -> Ack:
        """Store a deriver's values for a session under its name; the store does not read them."""
        key = self._keys.get(replace_surrogates(session))
        if key is None:
            key = self._locate(session)  # not kept: values are stored once per session
        return self._write("derived", key, name, body)

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
        return self._write("meta", key, value)

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
        """Finish pending writes, close the file and release the lock. Idempotent; blocks.

        Raises:
            StoreError: writes failed whose result nothing has asked for. The store is closed.
        """
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()
        self._sink.close()
        if self._unreported:
            first = next(iter(self._unreported))._error
            raise StoreError(
                f"{self.path}: {len(self._unreported)} writes for which nothing waited have "
                f"failed, the first with: {first}"
            )

    async def aclose(self) -> None:
        """Close without blocking the event loop; see :meth:`close`."""
        await asyncio.shield(asyncio.to_thread(self.close))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StoreError as error:
            _add_to(value, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except StoreError as error:
            _add_to(value, error)

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

    def _write(self, statement: Statement, *values: Any, lazy: bool = False) -> Ack:
        ack = Ack(self, self._mutex)
        texts = tuple([replace_surrogates(v) if type(v) is str else v for v in values])
        with self._mutex:
            if self._broken is not None:
                raise self._broken
            if self._closing:
                raise StoreError(f"{self.path}: the store is closed")
            self._pending.append((Write(statement, texts), ack))
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

    def _commit(self, batch: Sequence[tuple[Write, Ack]]) -> None:
        failed = self._sink.commit([write for write, _ in batch])
        if failed:
            for at, text in failed.items():
                write, ack = batch[at]
                if write.statement == "session":
                    self._forget(write.values[1])
                self._settle([ack], StoreError(f"{self.path}: not written: {text}"))
            batch = [pair for at, pair in enumerate(batch) if at not in failed]
        self._settle([ack for _, ack in batch])

    def _forget(self, session: str) -> None:
        """Let a session that could not be stored be begun again, and be unknown until then."""
        self._keys.pop(session, None)
        self._next_turn.pop(session, None)

    def _settle(self, acks: Sequence[Ack], error: StoreError | None = None) -> None:
        futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
        with self._mutex:
            for ack in acks:
                ack._error = error
                ack._done = True
                if error is not None and not ack._asked:
                    self._unreported[ack] = None
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

    def _break(self, batch: Sequence[tuple[Write, Ack]], error: BaseException) -> None:
        self._broken = StoreError(f"{self.path}: the writer died: {error!r}")
        with self._mutex:
            batch = [*batch, *self._pending]
            self._pending = []
        self._settle([ack for _, ack in batch if not ack.done], self._broken)


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _add_to(raised: BaseException | None, error: StoreError) -> None:
    """Raise a store's error, or add it to an exception that is being raised."""
    if raised is None:
        raise error
    raised.add_note(str(error))


def _check_outcome(outcome: Outcome, where: str) -> None:
    check_finite(outcome.score, f"{where}: score")
    check_finite(outcome.details, f"{where}: details")
