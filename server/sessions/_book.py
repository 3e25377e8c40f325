"""The sessions of a server: created, reopened after a restart, closed."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server._fields import check_session_id
from trajgym.server._limits import Limits
from trajgym.server._metrics import Metrics
from trajgym.server.sessions._live import LiveSession
from trajgym.trajectory import Attempt, InvalidInput, SessionRecord, Status, Task

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from trajgym.server.control import Control
    from trajgym.server.upstream import Upstream
    from trajgym.trajectory import Outcome, SessionSummary, Store

__all__ = ["ENV", "SessionBook", "Settings"]

ENV = {"id": "outside", "config": {}}
"""The environment recorded for sessions of outside agents."""
_LEFT = "the process that recorded it ended"


@dataclass(slots=True, kw_only=True)
class Settings:
    """What the sessions of a server share."""

    store: Store
    upstream: Upstream
    control: Control
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    redact: Sequence[re.Pattern[str]] = ()
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("trajgym.server"))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    listeners: list[Callable[[LiveSession], None]] = field(default_factory=list)
    """Called after a turn of a session, or its end, is durable; they must not block."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call in a task of its own: it may outlive its client's connection."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def tell(self, session: LiveSession) -> None:
        """Tell the listeners that a session has news."""
        for listener in self.listeners:
            listener(session)

    def fresh_id(self) -> str:
        """Return a unique id."""
        return uuid.uuid4().hex[:24]


class SessionBook:
    """Sessions by id. Sessions that were open when a server was killed are reopened."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._live: dict[str, LiveSession] = {}
        self._taken: set[str] = set()
        self._reopen()

    async def create(
        self,
        *,
        session_id: str | None = None,
        task: Task | None = None,
        group: str | None = None,
        sample: int = 0,
        labels: Mapping[str, str] | None = None,
    ) -> LiveSession:
        """Create a session for an outside agent; it is durable on return.

        Raises:
            Refused: the id is malformed or in use.
        """
        session_id = check_session_id(uuid.uuid4().hex if session_id is None else session_id)
        task = task or Task(id=session_id)
        record = SessionRecord(
            id=session_id,
            task=task.id,
            env=dict(ENV),
            group=group,
            sample=sample,
            labels=dict(labels or {}),
            created_at=time.time(),
        )
        store = self.settings.store
        if session_id in self._taken:
            raise Refused(409, f"session {session_id!r} is in this store already")
        self._taken.add(session_id)
        try:
            await store.put_task(task)
            await store.begin_session(record)
        except InvalidInput as error:  # a runner in this process has begun it
            raise Refused(409, str(error)) from error
        except BaseException:  # not stored, or cancelled: the store decides at the next try
            self._taken.discard(session_id)
            raise
        session = LiveSession(record, Attempt(), [], self.settings)
        return self._live.setdefault(session_id, session)  # a request may have loaded it meanwhile

    def find(self, session_id: str) -> LiveSession:
        """Return a session, open or closed.

        Raises:
            Refused: 404 if there is none of that id, 409 if a runner recorded it.
        """
        session = self._live.get(session_id)
        if session is not None:
            return session
        return self._load(session_id)

    def live(self, session_id: str) -> LiveSession | None:
        """Return an open session that is in memory; None for any other."""
        return self._live.get(session_id)

    async def close(
        self, session_id: str, status: Status, outcome: Outcome | None, cause: str
    ) -> LiveSession:
        """Close a session; see :meth:`LiveSession.close`. Idempotent."""
        session = self.find(session_id)
        await session.close(status, outcome, cause)
        self._live.pop(session_id, None)
        return session

    async def add_signals(
        self, session_id: str, turn: int, signals: Mapping[str, Any], source: str
    ) -> None:
        """Add a judge's signals to a recorded turn; they are durable on return.

        Raises:
            InvalidInput: there is no such session.
        """
        await self.settings.store.add_signals(session_id, turn, signals, source=source)
        session = self._live.get(session_id)
        if session is not None:
            session.turns[turn].signals.update(signals)

    def summaries(self) -> Iterator[SessionSummary]:
        """Yield the sessions of the store."""
        with self.settings.store.read() as run:
            yield from run.summaries()

    @property
    def open(self) -> int:
        """Number of open sessions in memory."""
        return len(self._live)

    async def shut(self) -> None:
        """Cancel running calls; sessions stay open in the store, to be reopened at a restart."""
        tasks = list(self.settings.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)

    # Inside -------------------------------------------------------------------------------

    def _load(self, session_id: str) -> LiveSession:
        with self.settings.store.read() as run:
            if run.locate(session_id) is None:
                raise Refused(
                    404, f"no session {session_id!r}; create one first", kind="not_found_error"
                )
            tree = run.session(session_id)
        if tree.record.env != ENV:
            raise Refused(
                409, f"session {session_id!r} was recorded by a runner, not by this server"
            )
        session = LiveSession(tree.record, tree.attempts[0], list(tree.turns), self.settings)
        if not session.attempt.status.ended:
            self._live[session_id] = session
        return session

    def _reopen(self) -> None:
        """Reopen the sessions that a killed server left; opening the store has interrupted them."""
        store = self.settings.store
        acks = []
        for summary in list(self.summaries()):
            self._taken.add(summary.record.id)
            attempt = summary.attempts[0] if summary.attempts else None
            if attempt is None or summary.record.env != ENV:
                continue
            if attempt.status == Status("interrupted") and attempt.cause == _LEFT:
                acks.append(store.put_attempt(summary.record.id, Attempt()))
        for ack in acks:
            ack.wait()
