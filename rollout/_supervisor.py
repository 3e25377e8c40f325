"""The task that does a run's work, whose failure is raised to the reader or logged."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trajgym.trajectory import TrajgymError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from typing import Any

__all__ = ["RunIncomplete", "Supervisor"]

_log = logging.getLogger(__name__)


class RunIncomplete(TrajgymError):
    """The runner ended with unfinished groups, although :meth:`Runner.stop` was not called."""


class Supervisor:
    """Runs the work of a runner or a fleet as a task; its failure is never lost.

    Args:
        what: what does the work, for messages: "runner", "fleet".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._task: asyncio.Task[None] | None = None
        self._raised = False
        """Whether a failure was raised to the caller."""

    @property
    def started(self) -> bool:
        """Whether the work was started."""
        return self._task is not None

    @property
    def task(self) -> asyncio.Task[None]:
        """The task, to wait for.

        Raises:
            RuntimeError: the work was not started.
        """
        if self._task is None:
            raise RuntimeError(
                f"use the {self._what} as a context manager: async with {self._what.title()}(...)"
            )
        return self._task

    def start(
        self, work: Coroutine[Any, Any, None], on_end: Callable[[], None] | None = None
    ) -> None:
        """Start the work.

        Args:
            work: the work.
            on_end: called when it has ended, in whichever way.
        """
        self._task = asyncio.create_task(work, name=f"trajgym-{self._what}")
        if on_end is not None:
            self._task.add_done_callback(lambda _: on_end())

    async def result(self) -> None:
        """Wait for the end of the work.

        Raises:
            RunIncomplete: the task was cancelled by something else than :meth:`cancel`.
            Exception: what the work raised.
        """
        if self.task.cancelled():
            raise RunIncomplete(
                f"the {self._what}'s task was cancelled before the run was finished"
            )
        self._raised = True
        await self.task

    async def cancel(self, also: Collection[asyncio.Task[None]] = ()) -> None:
        """Cancel the work and wait for its end; log a failure that was not raised to the caller.

        Args:
            also: other tasks to wait for, which are not cancelled.
        """
        self.task.cancel()
        try:
            await asyncio.wait([self.task, *also])
        finally:
            if self.task.done() and not self.task.cancelled():
                failure = self.task.exception()  # seen: result() raised it, or it is logged
                if failure is not None and not self._raised:
                    _log.error("the %s failed before it was left", self._what, exc_info=failure)
