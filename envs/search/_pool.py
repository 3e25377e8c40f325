"""One engine for many sessions: queries are batched, results are cached."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from trajgym.envs._clock import SharedClock
from trajgym.envs.search._engine import Hit, Passage, SearchEngine, check_query
from trajgym.envs.search._errors import SearchUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PooledEngine"]


class PooledEngine(SearchEngine):
    """Batches and caches another engine.

    Queries that arrive in the same round of the event loop are sent as one batch; a query that is
    already being answered is not sent twice. Cancelling one waiter does not affect the others.
    While the engine waits for a server that is down, the clock of every waiting session is paused.

    Args:
        engine: the underlying engine; closed with this one.
        kept: queries whose hits are cached; 0 disables the cache. Hits of live engines are never
            cached.
        batch: maximum number of queries per call.
    """

    def __init__(self, engine: SearchEngine, *, kept: int = 10_000, batch: int = 64) -> None:
        self.name = engine.name
        self.live = engine.live
        self.engine = engine
        self._kept = 0 if engine.live else kept
        self._batch = batch
        self._answers: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._waiting: dict[tuple[str, int], asyncio.Future[list[Hit]]] = {}
        self._queued: dict[int, list[str]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._clock = SharedClock()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See :meth:`SearchEngine.search`."""
        check_query(k)
        waits = [self._ask(query, k) for query in queries]
        if pending := [wait for wait in waits if isinstance(wait, asyncio.Future)]:
            with self._clock.waiting():
                await asyncio.wait(pending)
        return [list(w.result()) if isinstance(w, asyncio.Future) else list(w) for w in waits]

    async def get(self, ids: Sequence[str]) -> list[Passage | None]:
        """See :meth:`SearchEngine.get`."""
        return await self.engine.get(ids)

    async def close(self) -> None:
        """Cancel the running calls and close the engine."""
        self._queued.clear()
        for waiting in self._waiting.values():
            waiting.cancel()
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        await self.engine.close()

    def _ask(self, query: str, k: int) -> asyncio.Future[list[Hit]] | list[Hit]:
        key = (query, k)
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        if key not in self._waiting:
            loop = asyncio.get_running_loop()
            self._waiting[key] = loop.create_future()
            if not self._queued:
                loop.call_soon(self._send)
            self._queued.setdefault(k, []).append(query)
        return self._waiting[key]

    def _send(self) -> None:
        queued, self._queued = self._queued, {}
        for k, queries in queued.items():
            for start in range(0, len(queries), self._batch):
                call = asyncio.ensure_future(self._call(queries[start : start + self._batch], k))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _call(self, queries: list[str], k: int) -> None:
        try:
            with self._clock.serving():
                found = await self.engine.search(queries, k)
            if len(found) != len(queries):  # else a query would be waited for in vain
                raise SearchUnavailable(
                    f"engine {self.name!r} returned {len(found)} lists of hits for "
                    f"{len(queries)} queries"
                )
        except BaseException as error:  # noqa: BLE001 - boundary: it is passed to the waiters
            for query in queries:
                self._fail(self._waiting.pop((query, k)), error)
            return
        for query, hits in zip(queries, found, strict=True):
            self._keep((query, k), hits)
            waiting = self._waiting.pop((query, k))
            if not waiting.done():
                waiting.set_result(hits)

    @staticmethod
    def _fail(waiting: asyncio.Future[list[Hit]], error: BaseException) -> None:
        if waiting.done():
            return
        if isinstance(error, asyncio.CancelledError):
            waiting.cancel()
            return
        waiting.set_exception(error)
        waiting.exception()  # retrieved: the waiters may be gone

    def _keep(self, key: tuple[str, int], hits: list[Hit]) -> None:
        if not self._kept:
            return
        self._answers[key] = hits
        if len(self._answers) > self._kept:
            self._answers.popitem(last=False)
