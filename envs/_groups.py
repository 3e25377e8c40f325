"""Task groups of user code, which before Python 3.13 leave a request to cancel behind."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

__all__ = ["LeftRequests"]

_LEAVES = sys.version_info < (3, 13)
_EXIT = asyncio.TaskGroup.__aexit__.__code__


class LeftRequests:
    """Withdraws the requests to cancel a task that its own groups made and do not withdraw.

    A :class:`asyncio.TaskGroup` whose task fails cancels the task that waits for it. If that task
    is at the end of the ``async with`` block, Python 3.11 and 3.12 do not call ``uncancel``, so
    that ``Task.cancelling()`` would be taken for a cancellation by the owner of the task.

    Args:
        task: the task.
        coroutine: the code that runs in it.
    """

    __slots__ = ("_coroutine", "_known", "_task")

    def __init__(self, task: asyncio.Task[Any], coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = task
        self._coroutine = coroutine
        self._known: list[asyncio.TaskGroup] | None = None

    def withdraw(self) -> None:
        """Call ``uncancel`` for each group that has requested a cancellation since the last step.

        To be called when the task is cancelled, while the code is suspended.
        """
        if not _LEAVES:
            return
        known = self._known or []
        for group in self._requesting():
            if not any(group is one for one in known):
                self._task.uncancel()
        self._known = known

    def stepped(self) -> None:
        """Note the groups whose requests are settled; to be called when the code is suspended."""
        if self._known is not None:  # only after a cancellation
            self._known = list(self._requesting())

    def _requesting(self) -> Iterator[asyncio.TaskGroup]:
        """Yield the groups for whose end the code waits and that have requested to cancel it."""
        at: Any = self._coroutine
        while at is not None:
            frame = getattr(at, "cr_frame", None)
            if frame is not None and frame.f_code is _EXIT:
                group = frame.f_locals["self"]
                if group._parent_cancel_requested and group._parent_task is self._task:
                    yield group
            at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None)
