"""The feed's client: an asynchronous iterator of sealed groups."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Self

from trajgym.server._errors import ServerError
from trajgym.server.feeding._take import FedGroup, Taken, read_line
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import AsyncClosing, MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trajgym.rollout import SealedGroup
    from trajgym.server.feeding._log import Staleness

__all__ = ["Feed"]

_TOKEN = "TRAJGYM_TRAINER_TOKEN"  # noqa: S105 - the name of a variable
_MARGIN = 30.0
"""Seconds for which the server may be silent beyond the wait that it was asked for."""


class Feed(AsyncClosing):
    """Sealed groups of a session server, for a trainer.

    ::

        async with Feed("http://127.0.0.1:8100", max_staleness=4) as feed:
            async for sealed in feed:
                ...

    A group is acknowledged when the next one is asked for. After a restart of either side, a
    consumer is given again what it did not acknowledge: a group may come twice, none is lost. The
    server is asked again while it can't be reached. Bound to one event loop.

    For work on several groups at a time, use :meth:`take` and :meth:`done`.

    Args:
        url: of the server.
        consumer: name under which the server keeps what was acknowledged; each consumer receives
            every group.
        token: the trainer's or the admin's; the environment variable ``TRAJGYM_TRAINER_TOKEN`` by
            default.
        max_staleness: most versions that a session may be behind the server's policy version when
            it is sent; None sets no bound.
        stale: ``drop``: older sessions leave their group as ``stale``; ``report``: they stay, and
            are named in :attr:`FedGroup.stale`.
        acknowledge: False leaves it to :meth:`commit`, for example at checkpoints.
        share: place and number of consumers that divide the groups among themselves, such as
            ``(0, 4)``; each of them has a name of its own, made of ``consumer`` and its share.
        limit: most groups of a response; they are in memory together.
        wait: longest time that a request waits for a group (s); the server may permit less.
        patience: time without an answer of the server after which iteration fails (s).
        idle_seconds: time without a group after which iteration ends (s); None waits for ever.

    Raises:
        InvalidInput: a number is out of range.
        MissingExtra: aiohttp is not installed.
    """

    def __init__(
        self,
        url: str,
        consumer: str = "trainer",
        *,
        token: str | None = None,
        max_staleness: int | None = None,
        stale: Staleness = "drop",
        acknowledge: bool = True,
        share: tuple[int, int] = (0, 1),
        limit: int = 4,
        wait: float = 20.0,
        patience: float = 600.0,
        idle_seconds: float | None = None,
    ) -> None:
        if not 0 <= wait < math.inf or limit < 1 or patience <= 0:
            raise InvalidInput(
                f"feed: wait is {wait:g}, limit {limit}, patience {patience:g}; expected 0 or "
                "more, at least 1, and above 0",
            )
        if not 0 <= share[0] < share[1]:
            raise InvalidInput(f"feed: share is {share}; expected a place below their number")
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtra("aiohttp", "server") from error
        self.left: Counter[str] = Counter()
        """Number of members that had left their groups, by reason."""
        self.groups = 0
        """Number of groups taken."""
        self.version = 0
        """The trainer's policy version, as the server reported last."""
        self.behind = 0
        """Number of sealed groups after those received, as the server reported last."""
        self._aiohttp = aiohttp
        self._url = url.rstrip("/")
        self._consumer = consumer if share == (0, 1) else f"{consumer}.{share[0]}-of-{share[1]}"
        self._token = os.environ.get(_TOKEN) if token is None else token
        self._query: dict[str, str] = {
            "consumer": self._consumer,
            "limit": str(limit),
            "stale": stale,
            "share": f"{share[0]}/{share[1]}",
        }
        if max_staleness is not None:
            self._query["max_staleness"] = str(max_staleness)
        self._acknowledge = acknowledge
        self._wait = wait
        self._patience = patience
        self._idle = idle_seconds
        self._ready: deque[FedGroup] = deque()
        self._after: int | None = None
        self._taken = Taken()
        self._shared = share != (0, 1)
        self._passed = 0
        self._finished: int | None = None
        self._current: FedGroup | None = None
        self._lock = asyncio.Lock()
        self._http: Any = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SealedGroup:
        """Acknowledge the group before, and return the next one.

        Raises:
            ServerError: see :meth:`take`.
        """
        current, self._current = self._current, None
        if current is not None:
            await self.done(current)
        fed = await self.take()
        if fed is None:
            raise StopAsyncIteration
        self._current = fed
        return fed.sealed

    async def take(self) -> FedGroup | None:
        """Return the next group; None after ``idle_seconds`` without one.

        Calls at the same time receive different groups.

        Raises:
            ServerError: the server refuses, or could not be reached for ``patience`` seconds.
        """
        async with self._lock:
            idle_at = None if self._idle is None else time.monotonic() + self._idle
            while not self._ready:
                wait = self._wait
                if idle_at is not None:
                    wait = min(wait, max(0.0, idle_at - time.monotonic()))
                await self._poll(wait)  # also if the time has passed before the first poll
                if idle_at is not None and not self._ready and time.monotonic() >= idle_at:
                    return None
            fed = self._ready.popleft()
        self._taken.add(fed.position)
        self._passed = fed.position
        self.groups += 1
        self.left.update(member.left for member in fed.sealed.group.members if member.left)
        return fed

    async def done(self, fed: FedGroup) -> None:
        """Declare that a group is worked up: it is acknowledged once all before it are, too.

        Raises:
            ServerError: the server refuses, or could not be reached for ``patience`` seconds.
        """
        if (position := self._taken.done(fed.position)) is not None:
            self._finished = position
            if self._acknowledge:
                await self.commit()

    async def commit(self) -> None:
        """Acknowledge all groups that are done with, in order; durable on the server on return.

        The group that a loop works on is not among them.

        Raises:
            ServerError: the server refuses, or could not be reached for ``patience`` seconds.
        """
        position = self._finished
        if position is None:
            return
        body = {"consumer": self._consumer, "position": position}
        await self._patiently(lambda: self._post("/feed/ack", body))
        if self._finished == position:
            self._finished = None

    # Weight updates -----------------------------------------------------------------------

    async def announce(self, version: int) -> None:
        """Tell the server that the engine has weights of this version; durable there on return.

        Raises:
            ServerError: the server knows a higher version, as it does if it served another training
                before; or see :meth:`take`.
        """
        await self._patiently(lambda: self._post("/api/control/version", {"version": version}))
        self.version = version

    async def pause(self) -> None:
        """Let the server hold agents' calls while weights are sent to the engine. Idempotent.

        Raises:
            ServerError: see :meth:`take`.
        """
        body = {"mode": "keep", "engine": False}
        await self._patiently(lambda: self._post("/api/control/pause", body))

    async def resume(self) -> None:
        """Undo :meth:`pause`. Idempotent.

        Raises:
            ServerError: see :meth:`take`.
        """
        await self._patiently(lambda: self._post("/api/control/resume", {"engine": False}))

    async def close(self) -> None:
        """Close the connection. Idempotent; what was not acknowledged comes again."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    # HTTP ---------------------------------------------------------------------------------

    async def _poll(self, wait: float) -> None:
        query = dict(self._query, wait=f"{wait:g}")

        async def once() -> None:
            if self._ready:
                return  # groups that came before the connection broke
            if self._after is not None:
                query["after"] = str(self._after)
            async for line in self._lines(query, wait):
                found = await asyncio.to_thread(read_line, line)
                if isinstance(found, FedGroup):
                    self._ready.append(found)
                    self._after = found.position
                    self.version = found.version
                else:
                    self._after = found["position"]
                    self.version, self.behind = found["version"], found["behind"]

        await self._patiently(once)
        await self._pass_over()

    async def _pass_over(self) -> None:
        """Acknowledge groups of other shares, so that this consumer does not seem to be behind."""
        if self._shared and not self._ready and (self._after or 0) > self._passed:
            self._passed = self._after or 0
            self._taken.add(self._passed)
            self._finished = self._taken.done(self._passed) or self._finished
            if self._acknowledge:
                await self.commit()

    async def _lines(self, query: dict[str, str], wait: float) -> AsyncIterator[bytes]:
        timeout = self._aiohttp.ClientTimeout(total=None, sock_read=wait + _MARGIN)
        async with self._session().get(
            f"{self._url}/feed", params=query, headers=self._headers(), timeout=timeout
        ) as answer:
            await self._check(answer)
            parts: list[bytes] = []
            async for data in answer.content.iter_any():
                *whole, rest = data.split(b"\n")
                for piece in whole:
                    yield b"".join([*parts, piece])
                    parts = []
                parts.append(rest)

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        timeout = self._aiohttp.ClientTimeout(total=_MARGIN)
        async with self._session().post(
            self._url + path, json=body, headers=self._headers(), timeout=timeout
        ) as answer:
            await self._check(answer)

    async def _check(self, answer: Any) -> None:
        if answer.status < 400:
            return
        text = (await answer.text())[:500]
        if answer.status >= 500:
            raise _Again(f"status {answer.status}: {text}")
        raise ServerError(f"{self._url}: the server refuses with status {answer.status}: {text}")

    async def _patiently(self, once: Any) -> None:
        """Call until it succeeds, for a bounded time, unless the server refuses."""
        begun, delay = time.monotonic(), 0.1
        while True:
            try:
                await once()
            except (self._aiohttp.ClientError, TimeoutError, OSError, _Again) as error:
                if time.monotonic() - begun > self._patience:
                    raise ServerError(
                        f"{self._url}: the feed could not be read for {self._patience:g} s, at "
                        f"last: {error!r}; start the server, or raise patience",
                    ) from error
            else:
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)

    def _session(self) -> Any:
        if self._http is None:
            self._http = self._aiohttp.ClientSession()
        return self._http

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}


class _Again(Exception):
    """The server can't answer now."""
