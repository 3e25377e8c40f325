"""Waiting that cancellation can't cut short."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["see_through"]

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
