"""Growing a session into a tree: forks it where an expansion decides, and runs the rivals."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from trajgym.envs.faults import contained, describe, traceback_of
from trajgym.trajectory import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trajgym.envs import Session
    from trajgym.rollout._expansion import Expansion

__all__ = ["Branching"]

_log = logging.getLogger(__name__)


class Branching:
    """Grows the tree of a session whose first attempt has been scored.

    A rival that can't be opened (``Unforkable``, ``ForkDiverged``, a broken sandbox, a missed
    deadline) is recorded as an attempt that ended ``failed:fork``, with the error's name; so is a
    plan that fails. The other attempts are not affected.

    Args:
        session: an entered session, which must stay open until :meth:`grow` has returned.
        expansion: decides where to fork.
        slots: each rival holds one from its fork to its end.
        drive: runs a rival to its end.
        seed: seed of the expansion's random choices.
        seconds: deadline of one fork.
    """

    def __init__(
        self,
        session: Session,
        expansion: Expansion,
        *,
        slots: asyncio.Semaphore,
        drive: Callable[[Session], Awaitable[None]],
        seed: int,
        seconds: float,
    ) -> None:
        self._session = session
        self._expansion = expansion
        self._slots = slots
        self._drive = drive
        self._seed = seed
        self._seconds = seconds
        self._attempts = {session.attempt.index: session}
        self._broken: StoreError | None = None

    async def grow(self) -> None:
        """Run every round of the expansion.

        Raises:
            StoreError: a turn could not be stored.
        """
        session = self._session
        if not session.spec.resolve().forkable:
            reason = f"environment {session.spec.id!r} declares that it can't be forked"
            await session.add_failed_fork(None, f"Unforkable: {reason}")
            return
        for number in range(self._expansion.rounds):
            try:
                chance = random.Random(f"{self._seed}/{number}")  # noqa: S311 - no secret
                with contained():
                    points = list(self._expansion.plan(session.tree, number, chance))
            except Exception as error:  # noqa: BLE001 - boundary: the expansion
                await self._note(None, error)
                return
            await self._round(points)

    async def _round(self, points: list[int | None]) -> None:
        """Open the rivals sequentially, numbered in the order of the plan."""
        async with asyncio.TaskGroup() as rivals:
            for turn in points:
                await self._slots.acquire()
                rival = None
                try:
                    rival = await self._fork(turn)
                finally:
                    if rival is None:
                        self._slots.release()
                if rival is not None:
                    rivals.create_task(self._run(rival))
        if self._broken is not None:
            raise self._broken

    async def _fork(self, turn: int | None) -> Session | None:
        try:
            tree = self._session.tree
            owner = 0 if turn is None else tree.turns[turn].attempt
            async with asyncio.timeout(self._seconds):
                with contained():
                    return await self._attempts[owner].fork(turn)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: environment and expansion
            await self._note(turn, error)
            return None

    async def _note(self, turn: int | None, error: Exception) -> None:
        known = turn in range(len(self._session.tree.turns))
        at = turn if known else None
        await self._session.add_failed_fork(at, describe(error), traceback_of(error))

    async def _run(self, rival: Session) -> None:
        try:
            with contained():
                async with rival:
                    await self._drive(rival)
        except StoreError as error:
            # Not raised in the group: it would request to cancel this session's task, which some
            # versions of Python do not withdraw.
            self._broken = self._broken or error
        except Exception:  # noqa: BLE001 - boundary: recorded by the rival as it was left
            _log.exception("session %s: attempt %d", rival.id, rival.attempt.index)
        finally:
            self._slots.release()
        self._attempts[rival.attempt.index] = rival
