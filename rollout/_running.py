"""The sessions that a runner has in progress: pausing them, and ending them from outside."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from trajgym.rollout._sample import STALE, oldest_version
from trajgym.rollout.rules import Ending, Interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.envs import Session
    from trajgym.rollout.rules import Outdated

__all__ = ["RunningSessions"]


class _Running(NamedTuple):
    """A session that has begun, and what ends it."""

    session: Session
    interrupt: Interrupt
    version: int
    """The policy version at which it began."""


class RunningSessions:
    """The sessions in progress; used on one event loop.

    A session is known from :meth:`begin` to :meth:`end`. Its attempts run inside :meth:`counted`,
    and call :meth:`going` before each turn.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Running] = {}
        self.attempts: set[Session] = set()
        """The attempts that are running."""
        self._going = asyncio.Event()
        self._going.set()
        self._holds = ExitStack()

    def begin(self, session: Session, version: int) -> Interrupt:
        """Return what ends a session that begins at a policy version."""
        running = _Running(session, Interrupt(), version)
        self._known[session.id] = running
        return running.interrupt

    def end(self, session: Session) -> None:
        """Forget a session that has ended."""
        self._known.pop(session.id, None)

    @contextmanager
    def counted(self, session: Session) -> Iterator[None]:
        """Register an attempt that is running, so that :meth:`pause` stops its clock."""
        self.attempts.add(session)
        try:
            yield
        finally:
            self.attempts.discard(session)

    async def going(self) -> None:
        """Wait while the sessions are paused."""
        await self._going.wait()

    def pause(self) -> None:
        """Delay further turns, and stop the clocks of the attempts that are running."""
        if self._going.is_set():
            self._going.clear()
            for session in self.attempts:
                self._holds.enter_context(session.clock.hold())

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._holds.close()
        self._going.set()

    def end_group(self, group: str, ending: Ending) -> None:
        """Let the sessions of a group end, at their next policy calls.

        Args:
            group: id of the group.
            ending: how they end.
        """
        for running in self._known.values():
            if running.session.record.group == group:
                running.interrupt.set(ending)

    def end_outdated(self, rule: Outdated, version: int) -> None:
        """Let the sessions end that are too far behind, at their next policy calls.

        Args:
            rule: how far a session may be behind, and how it ends.
            version: the trainer's policy version.
        """
        kind: Literal["truncated", "failed"] = "truncated" if rule.action == "cut" else "failed"
        for running in self._known.values():
            low = oldest_version(running.session.tree)
            behind = version - (running.version if low is None else low)
            if behind > rule.versions:
                cause = f"its oldest token is {behind} versions behind"
                running.interrupt.set(Ending(kind, STALE.detail, cause))
