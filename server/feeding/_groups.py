"""Groups of outside agents' sessions: opened, completed by their sessions, sealed."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from trajgym.rollout._resume import left_reason
from trajgym.server._errors import Refused
from trajgym.server.sessions import ENV
from trajgym.trajectory import Group, Member, StoreError, Task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from trajgym.server.sessions import LiveSession, Settings
    from trajgym.trajectory import Status

__all__ = ["GroupBook", "Signals"]

_META = "server.group:"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}")
_LATE = "deadline"
"""Reason for which a session that was running at its group's deadline left the group."""
_CUT = "sealed"
"""Reason for which a session that was running when its group was sealed by request left it."""
_LARGEST = 4096
"""Most samples of a group."""
_LONGEST = 1e9
"""Latest deadline (s)."""


class Signals(Protocol):
    """What computes signals of sessions while they run."""

    async def settled(self, sessions: Collection[str]) -> None:
        """Return when nothing of these sessions waits for signals, or none can be computed now."""


@dataclass(slots=True, eq=False)
class _Open:
    """A group that is not sealed yet."""

    group: Group
    deadline: float | None
    """Unix time (s)."""
    running: dict[str, int] = field(default_factory=dict)
    """Samples by session."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    closed: bool = False
    """Whether its members are final, and it is being stored as sealed."""

    def check(self) -> None:
        """Set or clear :attr:`complete`."""
        ended = {member.sample for member in self.group.members}
        if len(ended) >= self.group.planned and not self.running:
            self.complete.set()
        else:
            self.complete.clear()

    def free(self) -> int | None:
        """Return the first sample that has no session, or only failed ones; None if there is none.

        Samples without a session come first.
        """
        begun = {m.sample for m in self.group.members} | set(self.running.values())
        good = {m.sample for m in self.group.counted} | set(self.running.values())
        planned = range(self.group.planned)
        fresh = next((k for k in planned if k not in begun), None)
        return next((k for k in planned if k not in good), None) if fresh is None else fresh


class GroupBook:
    """Groups by id. What a killed server left open is read from the store.

    A group is sealed when each of its samples has a session that ended and no session of it runs,
    or at its deadline: sessions that still run then leave it as ``deadline``. Before a complete
    group is sealed, its signals are waited for, up to ``signal_seconds``.

    Args:
        settings: what the sessions of the server share.
        on_sealed: awaited after a group was sealed.
        signals: what computes signals; None if nothing does.
        signal_seconds: how long a complete group waits for its signals.
        full: returns why no further group may be opened now, or an empty string.
    """

    def __init__(
        self,
        settings: Settings,
        on_sealed: Callable[[], Awaitable[None]],
        *,
        signals: Signals | None = None,
        signal_seconds: float = 30.0,
        full: Callable[[], str] = lambda: "",
    ) -> None:
        self._settings = settings
        self._on_sealed = on_sealed
        self._signals = signals
        self._signal_seconds = signal_seconds
        self._full = full
        self._open: dict[str, _Open] = {}
        self._begun = False
        self._load()

    @property
    def open(self) -> int:
        """Number of groups that are not sealed."""
        return len(self._open)

    def start(self) -> None:
        """Begin to seal groups, on the running event loop."""
        self._begun = True
        for one in self._open.values():
            self._begin(one)

    async def shut(self) -> None:
        """Stop to seal groups; open ones are opened again at a restart."""
        self._begun = False
        tasks = [one.task for one in self._open.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)

    # Requests -----------------------------------------------------------------------------

    async def create(
        self, group_id: str | None, task: Task, planned: int, seconds: float | None
    ) -> tuple[Group, bool]:
        """Open a group; return it, and whether it is new. It is durable on return.

        Args:
            group_id: its id; a new one if None.
            task: what its sessions attempt.
            planned: number of samples.
            seconds: deadline from now on (s); None sets none.

        Raises:
            Refused: the id is malformed or belongs to another group, a number is out of range, or
                consumers are too far behind (503).
        """
        group_id = uuid.uuid4().hex if group_id is None else group_id
        if not _ID.fullmatch(group_id):
            raise Refused(400, f"group id {group_id!r}: use letters, digits and .-, up to 128")
        if not 1 <= planned <= _LARGEST:
            raise Refused(400, f"samples is {planned}; expected 1 to {_LARGEST}")
        if seconds is not None and not 0 < seconds <= _LONGEST:
            raise Refused(
                400, f"seconds is {seconds:g}; expected more than 0, at most {_LONGEST:g}"
            )
        if (known := self._known(group_id)) is not None:
            if (known.task, known.planned) != (task.id, planned):
                raise Refused(409, f"group {group_id!r} exists with another task or size")
            return known, False
        if why := self._full():
            raise Refused(503, why, kind="overloaded_error", retry_after=5.0)
        group = Group(id=group_id, task=task.id, planned=planned)
        one = _Open(group, None if seconds is None else time.time() + seconds)
        self._open[group_id] = one
        store = self._settings.store
        kept = store.put_task(task)
        due = store.set_meta(_META + group_id, json.dumps({"deadline": one.deadline}))
        try:
            await store.put_group(group).after(kept, due)
        except StoreError:
            del self._open[group_id]
            raise
        self._begin(one)
        return group, True

    def find(self, group_id: str) -> Group:
        """Return a group, open or sealed.

        Raises:
            Refused: 404.
        """
        if (group := self._known(group_id)) is None:
            raise Refused(404, f"no group {group_id!r}", kind="not_found_error")
        return group

    def running(self, group_id: str) -> list[str]:
        """Return the sessions of a group that have not ended."""
        one = self._open.get(group_id)
        return [] if one is None else sorted(one.running)

    async def seal(self, group_id: str) -> Group:
        """Seal a group with the members that have ended. Idempotent.

        Raises:
            Refused: 404.
        """
        one = self._open.get(group_id)
        if one is not None and one.task is not None:
            one.cut.set()
            await asyncio.wait([one.task])
        return self.find(group_id)

    # Sessions -----------------------------------------------------------------------------

    def task_of(self, group_id: str) -> str | None:
        """Return the task of an open group; None if this server did not open it."""
        one = self._accepting(group_id)
        return None if one is None else one.group.task

    def join(self, session_id: str, group_id: str, sample: int | None, task: str) -> int:
        """Register a session that is about to be created; return its sample.

        A name that no group was opened under is the client's own: it groups nothing here.

        Raises:
            Refused: the group is sealed, full, or has another task; or the sample is taken.
        """
        one = self._accepting(group_id)
        if one is None:
            if self._known(group_id) is not None:
                raise Refused(409, f"group {group_id!r} is sealed; open another one")
            return sample or 0
        if task != one.group.task:
            raise Refused(400, f"group {group_id!r} has task {one.group.task!r}, not {task!r}")
        if sample is None:
            sample = one.free()
            if sample is None:
                raise Refused(409, f"group {group_id!r} has a session for each of its samples")
        taken = {m.sample for m in one.group.counted} | set(one.running.values())
        if sample in taken or sample >= one.group.planned:
            raise Refused(409, f"group {group_id!r}: sample {sample} is taken, or not planned")
        one.running[session_id] = sample
        one.check()
        return sample

    def leave(self, session_id: str, group_id: str) -> None:
        """Undo :meth:`join`: the session was not created."""
        if (one := self._accepting(group_id)) is not None:
            one.running.pop(session_id, None)
            one.check()

    def note(self, session: LiveSession) -> None:
        """Take note of a session's news: if it has ended, it is a member now."""
        status, group = session.attempt.status, session.record.group
        one = self._accepting(group or "")
        if one is None or not status.ended or one.running.pop(session.id, None) is None:
            return
        self._add(one, session.id, session.record.sample, status)

    def _accepting(self, group_id: str) -> _Open | None:
        """Return a group whose members are not final yet."""
        one = self._open.get(group_id)
        return None if one is None or one.closed else one

    def _add(self, one: _Open, session: str, sample: int, status: Status) -> None:
        one.group.members.append(Member(session, sample, left_reason(status)))
        one.check()

    # Sealing ------------------------------------------------------------------------------

    def _begin(self, one: _Open) -> None:
        if self._begun:
            name = f"trajgym-group-{one.group.id}"
            one.task = asyncio.get_running_loop().create_task(self._run(one), name=name)

    async def _run(self, one: _Open) -> None:
        """Wait for a group's end, and seal it."""
        waits = [asyncio.ensure_future(self._completed(one)), asyncio.ensure_future(one.cut.wait())]
        left = None if one.deadline is None else max(0.0, one.deadline - time.time())
        try:
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        try:
            await self._seal(one, _LATE if not done else _CUT)
            await self._on_sealed()
        except StoreError:
            self._settings.log.exception("group %s could not be sealed", one.group.id)

    async def _completed(self, one: _Open) -> None:
        while True:
            # No deadline here: that of the group ends the wait.
            await one.complete.wait()
            await self._judged(one)
            if one.complete.is_set():  # no session was added meanwhile
                return

    async def _judged(self, one: _Open) -> None:
        if self._signals is None or self._signal_seconds <= 0:
            return
        try:
            async with asyncio.timeout(self._signal_seconds):
                await self._signals.settled([m.session for m in one.group.counted])
        except TimeoutError:
            self._settings.log.warning("group %s: sealed before it was judged", one.group.id)

    async def _seal(self, one: _Open, reason: str) -> None:
        """Store a group as sealed; until that is durable, it is reported as open."""
        one.closed = True
        group = one.group
        for session, sample in one.running.items():
            group.members.append(Member(session, sample, reason))
        one.running.clear()
        group.members.sort(key=lambda member: (member.sample, member.session))
        try:
            await self._settings.store.put_group(replace(group, sealed=True))
            group.sealed = True
        finally:
            del self._open[group.id]

    # The store ----------------------------------------------------------------------------

    def _known(self, group_id: str) -> Group | None:
        if (one := self._open.get(group_id)) is not None:
            return one.group
        with self._settings.store.read() as run:
            return run.group(group_id)

    def _load(self) -> None:
        """Read the groups that an earlier process left open, and the sessions of each."""
        with self._settings.store.read() as run:
            meta: dict[str, Any] = {
                key.removeprefix(_META): json.loads(value)
                for key, value in run.meta().items()
                if key.startswith(_META)
            }
            for group in run.groups():
                if group.id in meta and not group.sealed:
                    self._open[group.id] = _Open(group, meta[group.id]["deadline"])
            if not self._open:
                return
            for summary in run.summaries():
                record = summary.record
                one = self._open.get(record.group or "")
                if one is None or record.env != ENV or not summary.attempts:
                    continue
                status = summary.attempts[0].status
                if status.ended:
                    self._add(one, record.id, record.sample, status)
                else:
                    one.running[record.id] = record.sample
        for one in self._open.values():
            one.check()
