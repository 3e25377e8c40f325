"""A lock that is held by many, or by one exclusively."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from trajgym.envs._threads import finish_despite_cancel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Gate"]


class Gate:
    """A lock that many hold together (`passing`) or one holds alone (`shut`)."""

    def __init__(self) -> None:
        self._inside = 0
        self._shut = False
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold it together with others; waits while it is held exclusively."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            await finish_despite_cancel(self._notify())

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Hold it exclusively; waits until all others have released it."""
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
            await finish_despite_cancel(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
