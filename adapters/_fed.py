"""Groups of a session server's feed, converted to a trainer's rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from trajgym.trajectory._internal import AsyncClosing

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.rollout import SealedGroup
    from trajgym.server import FedGroup, Feed

__all__ = ["FedGroups", "Worked"]

_T = TypeVar("_T")


class Worked(NamedTuple, Generic[_T]):
    """A group of the feed, and its rows."""

    fed: FedGroup
    made: _T


class FedGroups(AsyncClosing, Generic[_T]):
    """Takes groups from a feed and converts them to rows, like the groups of a runner.

    Bound to one event loop, as the feed is.

    Args:
        feed: the groups; closed by :meth:`close`.
        build: makes rows of a group, such as a `RowBuilder`; called in a thread.
    """

    def __init__(self, feed: Feed, build: Callable[[SealedGroup], _T]) -> None:
        self._feed = feed
        self._build = build
        self._version = -1
        self._announcing = asyncio.Lock()

    async def take(self) -> Worked[_T] | None:
        """Return the next group; None once the feed ends. Calls may overlap.

        Raises:
            ServerError: the server refuses, or could not be reached for long.
            MissingSignals: sessions lack signals; the group is not acknowledged and comes again.
            InvalidInput: the deriver refuses the group.
        """
        fed = await self._feed.take()
        if fed is None:
            return None
        return Worked(fed, await asyncio.to_thread(self._build, fed.sealed))

    async def done(self, worked: Worked[_T]) -> None:
        """Acknowledge a group whose rows the trainer has, or that has none.

        Raises:
            ServerError: the server refuses, or could not be reached for long.
        """
        await self._feed.done(worked.fed)

    async def announce(self, version: int) -> None:
        """Announce the trainer's policy version to the server, if it is a new one.

        Raises:
            ServerError: the server knows a higher version, or could not be reached for long.
        """
        async with self._announcing:
            if version > self._version:
                await self._feed.announce(version)
                self._version = version

    async def close(self) -> None:
        """Close the feed. Idempotent."""
        await self._feed.close()
