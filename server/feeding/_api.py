"""Endpoints of groups and of the feed."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, cast, get_args

from trajgym.server._errors import Refused
from trajgym.server._fields import finite_field, read_task, text_field, whole_field
from trajgym.server.feeding._log import Query, Staleness
from trajgym.trajectory._codec import to_jsonable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from trajgym.server.feeding._groups import GroupBook
    from trajgym.server.feeding._log import FeedLog
    from trajgym.trajectory import Group

    Handler = Callable[[Request], Awaitable[Response]]

__all__ = ["FeedApi"]

_LIMIT = 4
"""Groups of a response unless the client asks for more."""
_POLLS = 256
"""Most polls at the same time."""


class FeedApi:
    """Handlers of ``/feed`` and ``/api/groups``.

    Args:
        groups: the groups.
        log: those that are sealed.
        guard: wraps a handler: checks the token, answers errors.
        body: reads a request's JSON object.
        poll_seconds: longest time that a poll waits.
    """

    def __init__(
        self,
        groups: GroupBook,
        log: FeedLog,
        guard: Callable[..., Handler],
        body: Callable[[Request], Awaitable[dict[str, Any]]],
        poll_seconds: float,
    ) -> None:
        self._groups = groups
        self._log = log
        self._guard = guard
        self._body = body
        self._poll_seconds = poll_seconds
        self._polls = 0

    def routes(self) -> list[Route]:
        """Return the routes."""
        from starlette.routing import Route

        guard = self._guard
        return [
            Route("/feed", guard(self._feed, "trainer"), methods=["GET"]),
            Route("/feed/ack", guard(self._ack, "trainer"), methods=["POST"]),
            Route("/feed/consumers", guard(self._consumers, "trainer"), methods=["GET"]),
            Route("/api/groups", guard(self._create), methods=["POST"]),
            Route("/api/groups/{id}", guard(self._show, "trainer"), methods=["GET"]),
            Route("/api/groups/{id}/seal", guard(self._seal), methods=["POST"]),
        ]

    # The feed -----------------------------------------------------------------------------

    async def _feed(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        given = request.query_params
        query = Query(
            consumer=given.get("consumer", "trainer"),
            after=_whole(given.get("after"), "after"),
            limit=_limit(given.get("limit")),
            max_staleness=_whole(given.get("max_staleness"), "max_staleness"),
            stale=_stale(given.get("stale", "drop")),
            share=_share(given.get("share")),
        )
        if self._polls >= _POLLS:
            raise Refused(503, "too many polls wait already", retry_after=5.0)
        self._polls += 1
        try:
            seconds = min(_seconds(given.get("wait")), self._poll_seconds)
            await self._wait(request, query, seconds)
        finally:
            self._polls -= 1
        return StreamingResponse(self._log.lines(query), media_type="application/x-ndjson")

    async def _wait(self, request: Request, query: Query, seconds: float) -> None:
        """Wait for a group, or until the client leaves."""
        waits = [
            asyncio.ensure_future(self._log.wait(query, seconds)),
            asyncio.ensure_future(_gone(request)),
        ]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in waits:
                one.cancel()

    async def _ack(self, request: Request) -> Response:
        body = await self._body(request)
        position = whole_field(body, "position")
        if position is None:
            raise Refused(400, "position: expected an integer")
        consumer = text_field(body, "consumer")
        consumer = "trainer" if consumer is None else consumer
        return _json({"position": await self._log.acknowledge(consumer, position)})

    async def _consumers(self, request: Request) -> Response:
        del request
        found = [
            {"consumer": name, "position": self._log.acknowledged(name), "behind": behind}
            for name, behind in self._log.behind().items()
        ]
        return _json({"consumers": found, "last": self._log.last})

    # Groups -------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Response:
        body = await self._body(request)
        given = body.get("task")
        if given is None:
            raise Refused(400, "task: expected an id or a task")
        task = read_task({"id": given} if isinstance(given, str) else given)
        planned = whole_field(body, "samples")
        if planned is None:
            raise Refused(400, "samples: expected an integer")
        seconds = None if body.get("seconds") is None else finite_field(body, "seconds")
        group, new = await self._groups.create(text_field(body, "id"), task, planned, seconds)
        return _json(self._shown(group), 201 if new else 200)

    async def _show(self, request: Request) -> Response:
        return _json(self._shown(self._groups.find(request.path_params["id"])))

    async def _seal(self, request: Request) -> Response:
        return _json(self._shown(await self._groups.seal(request.path_params["id"])))

    def _shown(self, group: Group) -> dict[str, Any]:
        shown = {"members": [], "sealed": False} | cast("dict[str, Any]", to_jsonable(group))
        members = [
            {"session": m.session, "sample": m.sample, "left": m.left} for m in group.members
        ]
        return shown | {"members": members, "running": self._groups.running(group.id)}


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(content: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(content, status)


def _whole(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) >= 2**31:
        raise Refused(400, f"{name}: expected an integer from 0 to 2**31-1")
    return int(text)


def _limit(text: str | None) -> int:
    limit = _whole(text, "limit")
    if limit == 0:
        raise Refused(400, "limit: expected at least 1")
    return _LIMIT if limit is None else limit


def _share(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    place, _, shares = text.partition("/")
    found = _whole(place, "share"), _whole(shares, "share")
    if found[0] is None or found[1] is None or not found[0] < found[1]:
        raise Refused(400, "share: expected PLACE/NUMBER, such as 0/4")
    return found[0], found[1]


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        seconds = float(text)
    except ValueError as error:
        raise Refused(400, "wait: expected seconds") from error
    if not 0 <= seconds < math.inf:
        raise Refused(400, "wait: expected seconds")
    return seconds


def _stale(text: str) -> Staleness:
    if text not in get_args(Staleness):
        raise Refused(400, f"stale {text!r}: expected one of {get_args(Staleness)}")
    return cast("Staleness", text)
