"""Ending sessions from outside, without cancelling the task that runs them."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from trajgym.envs import Session

__all__ = ["Ending", "Interrupt", "Interrupted"]

_T = TypeVar("_T")


class Ending(NamedTuple):
    """How a session is to end."""

    kind: Literal["truncated", "failed", "cancelled"]
    detail: str
    """The budget of ``truncated``, or the part of ``failed``."""
    cause: str

    async def apply(self, session: Session) -> None:
        """End a session in this way."""
        if self.kind == "truncated":
            await session.truncate(self.detail, self.cause)
        elif self.kind == "failed":
            await session.fail(self.detail, self.cause)
        else:
            await session.cancel(self.cause)


class Interrupted(Exception):
    """Raised where a policy was asked, or would have been."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.cause)
        self.ending = ending


class Interrupt:
    """Ends the attempts of one session at their policy calls.

    A call in progress is cancelled; a tool that is running ends first.
    """

    def __init__(self) -> None:
        self.ending: Ending | None = None
        """How the session is to end; None while it is to continue."""
        self._tasks: set[asyncio.Task[object]] = set()

    def set(self, ending: Ending) -> None:
        """Let the session end; the first call counts."""
        if self.ending is None:
            self.ending = ending
            for task in self._tasks:
                task.cancel()

    async def guard(self, call: Awaitable[_T]) -> _T:
        """Await a policy call.

        Raises:
            Interrupted: the session is to end.
        """
        task = asyncio.current_task()
        assert task is not None
        if (interrupted := self._interrupted()) is not None:
            if inspect.iscoroutine(call):
                call.close()
            raise interrupted
        self._tasks.add(task)
        try:
            return await call
        except asyncio.CancelledError:
            interrupted = self._interrupted()
            if interrupted is None or not task.cancelling():
                raise
            task.uncancel()
            raise interrupted from None
        finally:
            self._tasks.discard(task)

    def _interrupted(self) -> Interrupted | None:
        return None if self.ending is None else Interrupted(self.ending)
