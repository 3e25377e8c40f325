"""Endpoints for trainers: sessions, rewards, roles, weight updates, metrics."""

from __future__ import annotations

import uuid
from functools import wraps
from typing import TYPE_CHECKING, Any, cast, get_args

from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from trajgym.server._auth import Auth, Right, bearer_of
from trajgym.server._errors import Refused, UpstreamError
from trajgym.server._fields import (
    finite_field,
    flag_field,
    labels_of,
    object_field,
    read_task,
    text_field,
    whole_field,
)
from trajgym.server._http import json_object
from trajgym.server._json import dumps
from trajgym.server._limits import read_body
from trajgym.server._openapi import document
from trajgym.server.control import PauseMode
from trajgym.server.feeding._log import tree_json
from trajgym.server.feeding._metrics import feed_metrics
from trajgym.server.joining import SET_BY_API
from trajgym.server.judging import judge_metrics
from trajgym.server.upstream import EngineSwitch
from trajgym.trajectory import InvalidInput, Outcome, SessionTree, Status, Task, TrajgymError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from starlette.requests import Request

    from trajgym.server.feeding import FeedLog, GroupBook
    from trajgym.server.judging import JudgeWork
    from trajgym.server.sessions import LiveSession, SessionBook

    Handler = Callable[[Request], Awaitable[Response]]

__all__ = ["Api"]

_PAGE = 1000


class Api:
    """Handlers under ``/api``.

    Args:
        book: the sessions.
        groups: their groups.
        feed: the sealed groups.
        auth: checks tokens.
        url: the server's address as agents see it; taken from the request if None.
        judging: the server's own judges, for metrics.
    """

    def __init__(
        self,
        book: SessionBook,
        groups: GroupBook,
        feed: FeedLog,
        auth: Auth,
        url: str | None = None,
        judging: JudgeWork | None = None,
    ) -> None:
        self._book = book
        self._groups = groups
        self._feed = feed
        self._settings = book.settings
        self._auth = auth
        self._url = url
        self._judging = judging
        self._switch = EngineSwitch(book.settings.upstream)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/sessions", self.guarded(self._all), methods=["GET", "POST"]),
            Route("/api/sessions/{id}", self.guarded(self._head, "judge"), methods=["GET"]),
            Route("/api/sessions/{id}/tree", self.guarded(self._tree, "judge"), methods=["GET"]),
            Route("/api/sessions/{id}/close", self.guarded(self._close), methods=["POST"]),
            Route("/api/sessions/{id}/rewards", self.guarded(self._reward), methods=["POST"]),
            Route("/api/sessions/{id}/roles", self.guarded(self._role), methods=["POST"]),
            Route(
                "/api/sessions/{id}/signals",
                self.guarded(self._signals, "judge"),
                methods=["POST"],
            ),
            Route("/api/control", self.guarded(self._state, "trainer"), methods=["GET"]),
            Route("/api/control/pause", self.guarded(self._pause, "trainer"), methods=["POST"]),
            Route("/api/control/resume", self.guarded(self._resume, "trainer"), methods=["POST"]),
            Route("/api/control/version", self.guarded(self._version, "trainer"), methods=["POST"]),
            Route("/metrics", self.guarded(self._metrics), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/api/openapi.json", self._document, methods=["GET"]),
        ]

    def guarded(self, handler: Handler, right: Right = "admin") -> Handler:
        """Return a handler that checks the token first, and answers our errors."""

        @wraps(handler)
        async def guarded(request: Request) -> Response:
            try:
                self._auth.check(bearer_of(request.scope["headers"]), right)
                return await handler(request)
            except UpstreamError as error:
                return _error(502, str(error), "api_error")
            except Refused as error:
                return _error(error.status, str(error), error.kind, error.headers)
            except InvalidInput as error:
                return _error(400, str(error), "invalid_request_error")
            except TrajgymError as error:
                return _error(500, str(error), "api_error")

        return guarded

    async def _health(self, request: Request) -> Response:
        del request
        return JSONResponse({"status": "ok"})

    async def _document(self, request: Request) -> Response:
        del request
        return JSONResponse(document())

    async def _metrics(self, request: Request) -> Response:
        del request
        text = self._settings.metrics.text(self._settings.control, self._book.open)
        text += feed_metrics(self._groups, self._feed)
        if self._judging is not None:
            text += judge_metrics(self._judging)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    # Sessions -----------------------------------------------------------------------------

    async def _all(self, request: Request) -> Response:
        create = request.method == "POST"
        return await (self._create(request) if create else self._list(request))

    async def _create(self, request: Request) -> Response:
        body = await self.body(request)
        given = body.get("task")
        task = None
        if given is not None:
            task = read_task({"id": given} if isinstance(given, str) else given)
        session_id = text_field(body, "id")
        session_id = uuid.uuid4().hex if session_id is None else session_id
        group, sample = text_field(body, "group") or None, whole_field(body, "sample")
        labels = labels_of(body.get("labels"))
        if group is not None:
            if task is None and (known := self._groups.task_of(group)) is not None:
                task = Task(id=known)
            name = session_id if task is None else task.id
            sample = self._groups.join(session_id, group, sample, name)
        try:
            session = await self._book.create(
                session_id=session_id, task=task, group=group, sample=sample or 0, labels=labels
            )
        except BaseException:
            if group is not None:
                self._groups.leave(session_id, group)
            raise
        return Response(dumps(self._opened(session, request)), 201, media_type="application/json")

    def _opened(self, session: LiveSession, request: Request) -> dict[str, Any]:
        root = (self._url or str(request.base_url)).rstrip("/")
        token = self._auth.session_token(session.id) if self._auth.required else "none"
        return {
            "id": session.id,
            "base_url": f"{root}/sessions/{session.id}/v1",
            "anthropic_base_url": f"{root}/sessions/{session.id}",
            "api_key": token,
        }

    async def _list(self, request: Request) -> Response:
        wanted, group = request.query_params.get("status"), request.query_params.get("group")
        after = request.query_params.get("after")
        found: list[dict[str, Any]] = []
        for summary in self._book.summaries():
            record, attempts = summary.record, summary.attempts
            if after is not None:
                after = None if record.id == after else after
                continue
            status = str(attempts[0].status) if attempts else "running"
            if (wanted and not status.startswith(wanted)) or (group and record.group != group):
                continue
            found.append(
                {
                    "id": record.id,
                    "task": record.task,
                    "group": record.group,
                    "status": status,
                    "turns": summary.turns,
                    "created_at": record.created_at,
                }
            )
            if len(found) == _PAGE:
                break
        return JSONResponse({"sessions": found, "more": len(found) == _PAGE})

    async def _head(self, request: Request) -> Response:
        session = self._book.find(request.path_params["id"])
        attempt = session.attempt
        outcome = attempt.outcome
        return JSONResponse(
            {
                "id": session.id,
                "task": session.record.task,
                "group": session.record.group,
                "labels": session.record.labels,
                "status": str(attempt.status),
                "cause": attempt.cause,
                "score": None if outcome is None else outcome.score,
                "turns": len(session.turns),
                "running": len(session.running),
            }
        )

    async def _tree(self, request: Request) -> Response:
        tree = self._book.find(request.path_params["id"]).recorder.tree
        return StreamingResponse(_paced(tree), media_type="application/json")

    async def _close(self, request: Request) -> Response:
        body = await self.body(request)
        status = Status.parse(text_field(body, "status") or "completed")
        if not status.ended:
            raise Refused(400, "status: a session is closed with a final status, not with running")
        score = None if body.get("score") is None else finite_field(body, "score")
        passed = flag_field(body, "passed", default=(score or 0.0) > 0)
        details, outcome = object_field(body, "details"), None
        if status.scored and score is not None:
            outcome = Outcome(score=score, passed=passed, details=details)
        cause = text_field(body, "cause") or ""
        session = await self._book.close(request.path_params["id"], status, outcome, cause)
        attempt = session.attempt
        return JSONResponse(
            {"id": session.id, "status": str(attempt.status), "cause": attempt.cause}
        )

    async def _reward(self, request: Request) -> Response:
        """Set rewards of turns. Idempotent."""
        body = await self.body(request)
        session = self._book.find(request.path_params["id"])
        given = body.get("rewards")
        if not isinstance(given, list):
            raise Refused(400, 'rewards: expected a list of {"turn" or "call", "reward"}')
        placed = [(_turn_of(session, one), finite_field(one, "reward")) for one in given]
        acks = [session.recorder.amend(index, reward=reward) for index, reward in placed]
        for ack in acks:
            if ack is not None:
                await ack
        return JSONResponse({"turns": [index for index, _ in placed]})

    async def _role(self, request: Request) -> Response:
        body = await self.body(request)
        session = self._book.find(request.path_params["id"])
        role = str(body.get("role") or "")
        if role != "main" and not (role.startswith("side:") and len(role) > 5):
            raise Refused(400, f"role {role!r}: expected main or side:<purpose>")
        index = _turn_of(session, body)
        ack = session.recorder.amend(index, role=role, role_reason=SET_BY_API)
        if ack is not None:
            await ack
        return JSONResponse({"turn": index, "role": role})

    async def _signals(self, request: Request) -> Response:
        body = await self.body(request)
        session = self._book.find(request.path_params["id"])
        signals, source = body.get("signals"), text_field(body, "source")
        if not isinstance(signals, dict) or not source or source.startswith("@"):
            raise Refused(400, "expected signals (an object) and source (a name)")
        index = _turn_of(session, body)
        await self._book.add_signals(session.id, index, signals, source)
        return JSONResponse({"turn": index})

    # Weight updates -----------------------------------------------------------------------

    async def _state(self, request: Request) -> Response:
        del request
        control = self._settings.control
        return JSONResponse(
            {"paused": control.paused, "version": control.version, "held": control.held}
        )

    async def _pause(self, request: Request) -> Response:
        body = await self.body(request)
        given = text_field(body, "mode") or "keep"
        if given not in get_args(PauseMode):
            raise Refused(400, f"mode {given!r}: expected one of {get_args(PauseMode)}")
        mode = cast("PauseMode", given)
        switch = flag_field(body, "engine", default=True)
        self._settings.control.pause(mode)
        engine = switch and await self._switch.pause(mode)
        return JSONResponse({"paused": True, "engine_paused": engine})

    async def _resume(self, request: Request) -> Response:
        body = await self.body(request)
        version, switch = whole_field(body, "version"), flag_field(body, "engine", default=True)
        if version is not None:
            await self._set_version(version)
        engine = switch and await self._switch.resume()
        self._settings.control.resume()
        return JSONResponse(
            {
                "paused": False,
                "engine_resumed": engine,
                "version": self._settings.control.version,
            }
        )

    async def _version(self, request: Request) -> Response:
        version = whole_field(await self.body(request), "version")
        if version is None:
            raise Refused(400, "version: expected an integer")
        await self._set_version(version)
        return JSONResponse({"version": version})

    async def _set_version(self, version: int) -> None:
        try:
            await self._settings.control.set_version(version)
        except InvalidInput as error:
            raise Refused(409, str(error)) from error

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON object of a request; an empty one without a body."""
        raw = await read_body(request.scope, request.receive, self._settings.limits)
        return json_object(raw) if raw.strip() else {}


def _error(
    status: int, message: str, kind: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> Response:
    content = {"error": {"message": message, "type": kind}}
    found = {name.decode(): value.decode("latin-1") for name, value in headers}
    return JSONResponse(content, status, found)


async def _paced(tree: SessionTree) -> AsyncIterator[bytes]:
    for piece in tree_json(tree):
        yield piece


def _turn_of(session: LiveSession, body: Any) -> int:
    """Return the index of the turn that a request names, by index or by the answer's id."""
    if not isinstance(body, dict):
        raise Refused(400, "expected an object with turn or call")
    index, call = body.get("turn"), body.get("call")
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(session.turns):
        return index
    if isinstance(call, str):
        for turn in session.turns:
            if turn.wire is not None and turn.wire.call == call:
                return turn.index
    raise Refused(404, f"session {session.id}: no turn {index!r} and no call {call!r}")
