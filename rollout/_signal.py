"""Waking all who wait for a change."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """Wakes everybody who waits, each time; used on one event loop.

    Check the condition, then wait, then check again: nothing is remembered between calls.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Wait until the next call of :meth:`ring`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def ring(self) -> None:
        """Wake all who wait now."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
