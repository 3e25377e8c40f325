"""Waiting that cancellation can't cut short, and a gate that can be shut."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

__all__ = ["Gate", "see_through"]

T = TypeVar("T")


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Run clean-up to its end even if the caller is cancelled meanwhile; then pass that on.

    The work must have a deadline of its own.

    Raises:
        asyncio.CancelledError: the caller was cancelled while the work ran; the work is done.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller asked for
        raise cancelled
    return task.result()


class Gate:
    """Many may be inside, or one may have it shut."""

    def __init__(self) -> None:
        self._inside = 0
        self._shut = False
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Be inside; waits while it is shut."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            await see_through(self._notify())

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Have it shut; waits until nobody is inside."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._shut)
            self._shut = True
            try:
                await self._changed.wait_for(lambda: not self._inside)
            except BaseException:
                self._shut = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            self._shut = False
            await see_through(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
