"""Endpoints for trainers: sessions, rewards, roles, weight updates, metrics."""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any, cast, get_args

from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from trajgym.server._auth import Auth, Right, bearer_of
from trajgym.server._errors import Refused, UpstreamError
from trajgym.server._http import json_object
from trajgym.server._json import dumps
from trajgym.server._limits import read_body
from trajgym.server._openapi import document
from trajgym.server.control import PauseMode
from trajgym.server.joining import SET_BY_API
from trajgym.server.upstream import EngineSwitch
from trajgym.trajectory import InvalidInput, Outcome, SessionTree, Status, Task, TrajgymError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from trajgym.server.sessions import LiveSession, SessionBook

    Handler = Callable[[Request], Awaitable[Response]]

__all__ = ["Api"]

_PAGE = 1000


class Api:
    """Handlers under ``/api``.

    Args:
        book: the sessions.
        auth: checks tokens.
        url: the server's address as agents see it; taken from the request if None.
    """

    def __init__(self, book: SessionBook, auth: Auth, url: str | None = None) -> None:
        self._book = book
        self._settings = book.settings
        self._auth = auth
        self._url = url
        self._switch = EngineSwitch(book.settings.upstream)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/api/sessions", self._guarded(self._all), methods=["GET", "POST"]),
            Route("/api/sessions/{id}", self._guarded(self._head, "judge"), methods=["GET"]),
            Route("/api/sessions/{id}/tree", self._guarded(self._tree, "judge"), methods=["GET"]),
            Route("/api/sessions/{id}/close", self._guarded(self._close), methods=["POST"]),
            Route("/api/sessions/{id}/rewards", self._guarded(self._reward), methods=["POST"]),
            Route("/api/sessions/{id}/roles", self._guarded(self._role), methods=["POST"]),
            Route(
                "/api/sessions/{id}/signals",
                self._guarded(self._signals, "judge"),
                methods=["POST"],
            ),
            Route("/api/control", self._guarded(self._state), methods=["GET"]),
            Route("/api/control/pause", self._guarded(self._pause), methods=["POST"]),
            Route("/api/control/resume", self._guarded(self._resume), methods=["POST"]),
            Route("/api/control/version", self._guarded(self._version), methods=["POST"]),
            Route("/metrics", self._guarded(self._metrics), methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/api/openapi.json", self._document, methods=["GET"]),
        ]

    def _guarded(self, handler: Handler, right: Right = "admin") -> Handler:
        @wraps(handler)
        async def guarded(request: Request) -> Response:
            try:
                self._auth.check(bearer_of(request.scope["headers"]), right)
                return await handler(request)
            except UpstreamError as error:
                return _error(502, str(error), "api_error")
            except Refused as error:
                return _error(error.status, str(error), error.kind)
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
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    # Sessions -----------------------------------------------------------------------------

    async def _all(self, request: Request) -> Response:
        create = request.method == "POST"
        return await (self._create(request) if create else self._list(request))

    async def _create(self, request: Request) -> Response:
        body = await self._body(request)
        given = body.get("task")
        task = None
        if given is not None:
            task = _task({"id": given} if isinstance(given, str) else given)
        session = await self._book.create(
            session_id=_text(body, "id"),
            task=task,
            group=_text(body, "group") or None,
            sample=_whole(body, "sample") or 0,
            labels=_labels(body.get("labels")),
        )
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
        return StreamingResponse(_streamed(tree), media_type="application/json")

    async def _close(self, request: Request) -> Response:
        body = await self._body(request)
        status = Status.parse(_text(body, "status") or "completed")
        if not status.ended:
            raise Refused(400, "status: a session is closed with a final status, not with running")
        score = None if body.get("score") is None else _finite(body, "score")
        passed = _flag(body, "passed", default=(score or 0.0) > 0)
        details, outcome = _object(body, "details"), None
        if status.scored and score is not None:
            outcome = Outcome(score=score, passed=passed, details=details)
        cause = _text(body, "cause") or ""
        session = await self._book.close(request.path_params["id"], status, outcome, cause)
        attempt = session.attempt
        return JSONResponse(
            {"id": session.id, "status": str(attempt.status), "cause": attempt.cause}
        )

    async def _reward(self, request: Request) -> Response:
        """Set rewards of turns. Idempotent."""
        body = await self._body(request)
        session = self._book.find(request.path_params["id"])
        given = body.get("rewards")
        if not isinstance(given, list):
            raise Refused(400, 'rewards: expected a list of {"turn" or "call", "reward"}')
        placed = [(_turn_of(session, one), _finite(one, "reward")) for one in given]
        acks = [session.recorder.amend(index, reward=reward) for index, reward in placed]
        for ack in acks:
            if ack is not None:
                await ack
        return JSONResponse({"turns": [index for index, _ in placed]})

    async def _role(self, request: Request) -> Response:
        body = await self._body(request)
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
        body = await self._body(request)
        session = self._book.find(request.path_params["id"])
        signals, source = body.get("signals"), _text(body, "source")
        if not isinstance(signals, dict) or not source or source.startswith("@"):
            raise Refused(400, "expected signals (an object) and source (a name)")
        index = _turn_of(session, body)
        await self._settings.store.add_signals(session.id, index, signals, source=source)
        session.turns[index].signals.update(signals)
        return JSONResponse({"turn": index})

    # Weight updates -----------------------------------------------------------------------

    async def _state(self, request: Request) -> Response:
        del request
        control = self._settings.control
        return JSONResponse(
            {"paused": control.paused, "version": control.version, "held": control.held}
        )

    async def _pause(self, request: Request) -> Response:
        body = await self._body(request)
        given = _text(body, "mode") or "keep"
        if given not in get_args(PauseMode):
            raise Refused(400, f"mode {given!r}: expected one of {get_args(PauseMode)}")
        mode = cast("PauseMode", given)
        switch = _flag(body, "engine", default=True)
        self._settings.control.pause(mode)
        engine = switch and await self._switch.pause(mode)
        return JSONResponse({"paused": True, "engine_paused": engine})

    async def _resume(self, request: Request) -> Response:
        body = await self._body(request)
        version, switch = _whole(body, "version"), _flag(body, "engine", default=True)
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
        version = _whole(await self._body(request), "version")
        if version is None:
            raise Refused(400, "version: expected an integer")
        await self._set_version(version)
        return JSONResponse({"version": version})

    async def _set_version(self, version: int) -> None:
        try:
            await self._settings.control.set_version(version)
        except InvalidInput as error:
            raise Refused(409, str(error)) from error

    async def _body(self, request: Request) -> dict[str, Any]:
        raw = await read_body(request.scope, request.receive, self._settings.limits)
        return json_object(raw) if raw.strip() else {}


def _error(status: int, message: str, kind: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind}}, status)


async def _streamed(tree: SessionTree) -> AsyncIterator[bytes]:
    """Yield a session's JSON turn by turn, in the form of :meth:`SessionTree.to_json`."""
    from trajgym.trajectory._codec import encode

    yield b'{"session":' + encode(tree.record) + b',"turns":['
    for i, turn in enumerate(tree.turns):
        yield (b"," if i else b"") + encode(turn)
    yield b'],"attempts":[' + b",".join(encode(attempt) for attempt in tree.attempts) + b"]}"


def _task(given: Any) -> Task:
    from trajgym.trajectory._codec import decode

    return decode(Task, dumps(given))


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name}: expected a string")
    return value


def _whole(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not 0 <= value < 2**31:
        raise Refused(400, f"{name}: expected an integer from 0 to 2**31-1")
    return int(value)


def _flag(body: dict[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Refused(400, f"{name}: expected true or false")
    return value


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(400, f"{name}: expected an object")
    return value


def _finite(body: Any, name: str) -> float:
    value = body.get(name) if isinstance(body, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise Refused(400, f"{name}: expected a finite number")


def _labels(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise Refused(400, "labels: expected an object whose values are strings")
    return value


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
