"""The sealed groups in order, and how far each consumer has come."""

from __future__ import annotations

import asyncio
import re
import zlib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from trajgym.rollout._sample import oldest_version
from trajgym.server._errors import Refused
from trajgym.server._json import dumps
from trajgym.trajectory._codec import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trajgym.server.control import Control
    from trajgym.trajectory import Group, Member, SessionTree, Store

__all__ = ["FeedLog", "Query", "Staleness", "tree_json"]

Staleness: TypeAlias = Literal["drop", "report"]
"""What happens to sessions that are too old: they leave their group as ``stale``, or are named."""
_META = "server.feed:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST = 64
"""Most consumers."""
_PAGE = 64
"""Most groups of a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a consumer asks for.

    Args:
        consumer: its name.
        after: position of the last group that it does not want; where it acknowledged if None.
        limit: most groups.
        max_staleness: most versions that a session may be behind the server's; None sets no bound.
        stale: what happens to older ones.
        share: place and number of the consumers that divide the groups among themselves.
    """

    consumer: str
    after: int | None = None
    limit: int = 4
    max_staleness: int | None = None
    stale: Staleness = "drop"
    share: tuple[int, int] = (0, 1)

    def takes(self, group: str) -> bool:
        """Return whether a group belongs to this consumer's share."""
        place, shares = self.share
        return zlib.crc32(group.encode()) % shares == place


class FeedLog:
    """The groups that a server sealed, in the order of sealing.

    Consumers have names. Each reads from where it acknowledged, so that after a restart of either
    side it is given again what it did not acknowledge.

    Args:
        store: of the server.
        control: knows the trainer's policy version.
        most_bytes: a response with several groups ends once it has this size.
        most_behind: number of groups by which the slowest consumer may be behind before
            :meth:`full` says so; None sets no bound.
    """

    def __init__(
        self,
        store: Store,
        control: Control,
        *,
        most_bytes: int = 64 << 20,
        most_behind: int | None = None,
    ) -> None:
        self.delivered: Counter[str] = Counter()
        """Groups sent, by consumer; a group that is sent again counts again."""
        self.stale: Counter[str] = Counter()
        """Sessions that were too old, by consumer."""
        self._store = store
        self._control = control
        self._most_bytes = most_bytes
        self._most_behind = most_behind
        self._positions: list[int] = []
        self._acknowledged: dict[str, int] = {}
        self._news = asyncio.Event()
        with store.read() as run:
            self._extend(run.sealed_groups(0, -1))
            for key, value in run.meta().items():
                if key.startswith(_META):
                    self._acknowledged[key.removeprefix(_META)] = int(value)

    @property
    def last(self) -> int:
        """Position of the group that was sealed last; 0 if there is none."""
        return self._positions[-1] if self._positions else 0

    async def refresh(self) -> None:
        """Take note of groups that were sealed since the last call."""
        self._extend(await asyncio.to_thread(self._sealed, self.last, -1))
        self._news.set()
        self._news = asyncio.Event()

    def full(self) -> str:
        """Return why no further group may be opened now; an empty string if one may be."""
        behind = max(self.behind().values(), default=len(self._positions))
        if self._most_behind is None or behind < self._most_behind:
            return ""
        return f"a consumer of the feed is {behind} groups behind; open groups again later"

    def behind(self) -> dict[str, int]:
        """Return by how many groups each consumer is behind."""
        total = len(self._positions)
        return {
            name: total - bisect_right(self._positions, position)
            for name, position in sorted(self._acknowledged.items())
        }

    def acknowledged(self, consumer: str) -> int:
        """Return the position up to which a consumer has acknowledged; 0 for a new one."""
        return self._acknowledged.get(consumer, 0)

    async def acknowledge(self, consumer: str, position: int) -> int:
        """Record that a consumer is done with all groups up to a position; durable on return.

        Returns:
            Its position now: a lower one than before changes nothing.

        Raises:
            Refused: no group has been sealed at that position yet, or the name is not possible.
        """
        self._check(consumer)
        if position > self.last:
            await self.refresh()  # a group can be read as soon as it is stored
        if position > self.last:
            raise Refused(409, f"position {position}: the last sealed group has {self.last}")
        if position > self._acknowledged.get(consumer, -1):
            self._acknowledged[consumer] = position
            await self._store.set_meta(_META + consumer, str(position))
        return self._acknowledged[consumer]

    async def wait(self, query: Query, seconds: float) -> None:
        """Return once there is a group for a query, or after some time.

        Raises:
            Refused: the consumer's name is not possible.
        """
        self._check(query.consumer)
        after = self._after(query)
        try:
            async with asyncio.timeout(seconds):
                while self.last <= after:
                    await self._news.wait()
        except TimeoutError:
            return

    async def lines(self, query: Query) -> AsyncIterator[bytes]:
        """Yield the groups for a query as JSON lines, and a last line with ``"end": true``.

        A group's line comes in pieces; one session at a time is in memory.
        """
        position = self._after(query)
        size = 0
        limit = min(query.limit, _PAGE)
        for place, group in await asyncio.to_thread(self._sealed, position, limit):
            if size >= self._most_bytes:
                break
            if not query.takes(group.id):
                position = place
                continue
            pieces = self._line(place, group, query)
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                size += len(piece)
                yield piece
            self.delivered[query.consumer] += 1
            position = place
        left = len(self._positions) - bisect_right(self._positions, position)
        end = {"end": True, "position": position, "behind": left, "version": self._control.version}
        yield dumps(end) + b"\n"

    # Inside -------------------------------------------------------------------------------

    def _line(self, position: int, group: Group, query: Query) -> Iterator[bytes]:
        """Yield a group's line; blocks while it reads."""
        version, most = self._control.version, query.max_staleness
        old: dict[str, int] = {}
        members: list[Member] = []
        yield b'{"position":%d,"version":%d,"sessions":[' % (position, version)
        first = True
        for member in group.members:
            if not member.left:
                with self._store.read() as run:
                    tree = run.session(member.session)
                oldest = oldest_version(tree)
                if most is not None and oldest is not None and version - oldest > most:
                    old[member.session] = version - oldest
                    if query.stale == "drop":
                        member = member._replace(left="stale")
            if not member.left:
                yield (b"" if first else b",") + b"".join(tree_json(tree))
                first = False
            members.append(member)
        self.stale[query.consumer] += len(old)
        group.members = members
        yield b'],"group":' + encode(group) + b',"stale":' + dumps(old) + b"}\n"

    def _sealed(self, after: int, most: int) -> list[tuple[int, Group]]:
        with self._store.read() as run:
            return run.sealed_groups(after, most)

    def _extend(self, found: list[tuple[int, Group]]) -> None:
        last = self.last
        self._positions += [position for position, _ in found if position > last]

    def _after(self, query: Query) -> int:
        return self.acknowledged(query.consumer) if query.after is None else query.after

    def _check(self, consumer: str) -> None:
        if not _NAME.fullmatch(consumer):
            raise Refused(400, f"consumer {consumer!r}: use letters, digits and ._-, up to 64")
        if consumer not in self._acknowledged and len(self._acknowledged) >= _MOST:
            raise Refused(400, f"there are {_MOST} consumers already")


def tree_json(tree: SessionTree) -> Iterator[bytes]:
    """Yield a session's JSON turn by turn, in the form of :meth:`SessionTree.to_json`."""
    yield b'{"session":' + encode(tree.record) + b',"turns":['
    for i, turn in enumerate(tree.turns):
        yield (b"," if i else b"") + encode(turn)
    yield b'],"attempts":[' + b",".join(encode(attempt) for attempt in tree.attempts) + b"]}"
