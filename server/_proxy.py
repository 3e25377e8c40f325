"""Model endpoints for agents under a session's URL, as a plain ASGI application."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any, Protocol

from trajgym.envs._current import current_session
from trajgym.server._auth import Auth, bearer_of
from trajgym.server._connection import connection_of
from trajgym.server._errors import Refused, ServerError
from trajgym.server._http import json_object, respond
from trajgym.server._json import dumps
from trajgym.server._limits import ClientGone, read_body
from trajgym.server.dialects import (
    ChatDialect,
    CompletionsDialect,
    Dialect,
    MessagesDialect,
    ResponsesDialect,
)
from trajgym.server.sessions import Flight, Listener, LiveSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from trajgym.server.sessions import Settings

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ["Directory", "Proxy"]

_DIALECTS: Mapping[str, Dialect] = {
    "chat/completions": ChatDialect(),
    "completions": CompletionsDialect(),
    "responses": ResponsesDialect(),
    "messages": MessagesDialect(),
}
_HINTS = {
    b"x-claude-code-session-id": "session",
    b"x-claude-code-agent-id": "agent",
    b"x-claude-code-parent-agent-id": "parent_agent",
    b"x-trajgym-agent": "agent",
    b"x-trajgym-parent-agent": "parent_agent",
    b"x-trajgym-role": "role",
    b"x-session-id": "session",
    b"x-parent-session-id": "parent_session",
    b"session-id": "session",
    b"thread-id": "thread",
    b"x-litellm-session-id": "session",
}
_CHARS_PER_TOKEN = 4


class Directory(Protocol):
    """Sessions by id."""

    @property
    def settings(self) -> Settings:
        """What the sessions share."""

    def find(self, session_id: str) -> LiveSession:
        """Return a session.

        Raises:
            Refused: 404 if there is none of that id.
        """


class Proxy:
    """Serves ``/sessions/ID/…`` and, for agents identified by their API key, ``/v1/…``.

    Args:
        book: the sessions.
        auth: checks tokens.
    """

    def __init__(self, book: Directory, auth: Auth) -> None:
        self._book = book
        self._auth = auth
        self._limits = book.settings.limits

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        dialect: Dialect = _DIALECTS["chat/completions"]
        try:
            session_id, path = self._address(scope)
            dialect = _DIALECTS.get(path, dialect)
            if scope["method"] in {"HEAD", "GET"}:
                await self._read(scope["method"], session_id, path, send)
                return
            if scope["method"] != "POST":
                raise Refused(405, f"{scope['method']} is not served here", allow="GET, HEAD, POST")
            raw = await read_body(scope, receive, self._limits)
            if path == "messages/count_tokens":
                await respond(send, 200, dumps({"input_tokens": _estimate(json_object(raw))}))
                return
            if path not in _DIALECTS:
                raise Refused(404, f"no endpoint /{path} here", kind="not_found_error")
            session = self._book.find(session_id)
            current_session.set(session_id)  # a request has a task of its own
            await self._call(session, dialect, path, raw, scope, receive, send)
        except ClientGone:
            return
        except Refused as error:
            self._book.settings.metrics.refused[error.status] += 1
            body = dialect.error(error.status, str(error), error.kind)
            await respond(send, error.status, body, error.headers, close=error.status == 413)
        except ServerError as error:
            body = dialect.error(502, str(error), "api_error")
            await respond(send, 502, body)

    def _address(self, scope: dict[str, Any]) -> tuple[str, str]:
        """Return session id and endpoint of a request, for every form of base URL agents build."""
        parts = [part for part in scope["path"].split("/") if part]
        token = bearer_of(scope["headers"])
        if parts[:1] == ["sessions"] and len(parts) > 1:
            session_id, parts = parts[1], parts[2:]
            self._auth.check_session(token, session_id)
        else:
            found = self._auth.session_of(token)
            if found is None:
                raise Refused(
                    401,
                    "no session: use /sessions/ID/v1 as base URL, or the session's token as key",
                    kind="authentication_error",
                )
            session_id = found
        while parts[:1] == ["v1"]:
            parts = parts[1:]
        return session_id, "/".join(parts)

    async def _read(self, method: str, session_id: str, path: str, send: Send) -> None:
        self._book.find(session_id)
        if method == "HEAD" or path in {"", "api/hello"}:
            await respond(send, 200, b"" if method == "HEAD" else b"{}")
            return
        if path != "models" and not path.startswith("models/"):
            raise Refused(404, f"no endpoint /{path} here", kind="not_found_error")
        status, body = await self._book.settings.upstream.models()
        await respond(send, status, body)

    async def _call(
        self,
        session: LiveSession,
        dialect: Dialect,
        path: str,
        raw: bytes,
        scope: dict[str, Any],
        receive: Receive,
        send: Send,
    ) -> None:
        hints, retry = _hints(scope["headers"])
        digest = hashlib.sha256(
            b"\0".join([path.encode(), raw, hints.get("agent", "").encode()])
        ).hexdigest()
        listener = Listener()
        flight = session.arrive(
            dialect, json_object(raw), digest, hints, retry=retry, listener=listener
        )
        connection = connection_of(scope)
        unwatch: Callable[[], object]
        if connection is None:
            send = self._bounded(send)
            unwatch = asyncio.get_running_loop().create_task(_watch(receive, listener)).cancel
        else:
            connection.watch(listener.leave)
            unwatch = connection.unwatch
        try:
            try:
                sent = await self._serve(flight, listener, send)
                if sent and connection is not None:  # others wait in send() itself
                    sent = await connection.drained()
            except OSError:  # the client accepts no more, or not in time
                sent = False
            if sent:
                session.delivered(flight)
        finally:
            unwatch()
            session.left(flight, listener)

    def _bounded(self, send: Send) -> Send:
        """Return ``send`` with the deadline that a connection of ours has by itself."""

        async def bounded(message: dict[str, Any]) -> None:
            async with asyncio.timeout(self._limits.send_seconds):
                await send(message)

        return bounded

    async def _serve(self, flight: Flight, listener: Listener, send: Send) -> bool:
        """Send what a call produces; return whether all of it was sent."""
        position, begun = 0, False
        while not listener.gone:
            if flight.status and not begun and (flight.state != "running" or flight.pieces):
                begun = True
                await _start(send, flight)
            if begun and position < len(flight.pieces):
                last = flight.state != "running"
                piece = b"".join(flight.pieces[position:])  # those that are ready, as one
                position = len(flight.pieces)
                await _send(send, piece, more=not last)
                if last:
                    return flight.state == "complete" and not listener.gone
                continue
            if flight.state != "running":
                return False
            if begun and flight.keep_alive:
                await self._wait(flight, listener, send)
            else:  # ends with the flight, which the engine's own timeouts bound
                await listener.news.wait()
            listener.news.clear()
        return False

    async def _wait(self, flight: Flight, listener: Listener, send: Send) -> None:
        """Wait for news of a stream, or keep it alive after a silence."""
        if listener.news.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.keep_alive_seconds):
                await listener.news.wait()
        except TimeoutError:
            await _send(send, flight.keep_alive, more=True)


async def _watch(receive: Receive, listener: Listener) -> None:
    """Wait for the client to disconnect, then mark its listener."""
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.leave()


async def _send(send: Send, piece: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _start(send: Send, flight: Flight) -> None:
    headers = [(b"content-type", flight.content_type.encode()), *flight.headers]
    if flight.content_type == "text/event-stream":
        headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    elif flight.state != "running":
        headers.append((b"content-length", b"%d" % sum(map(len, flight.pieces))))
    await send({"type": "http.response.start", "status": flight.status, "headers": headers})


def _hints(headers: list[tuple[bytes, bytes]]) -> tuple[dict[str, str], bool]:
    """Return an agent's hints, and whether it marks the request as a retry."""
    hints: dict[str, str] = {}
    retry = False
    for name, value in headers:
        if name in _HINTS:
            hints.setdefault(_HINTS[name], value.decode("latin-1")[:256])
        elif name == b"x-stainless-retry-count":
            retry = value not in {b"0", b""}
        elif name == b"x-codex-turn-metadata":
            hints.update(_codex(value))
    if "parent_session" in hints and "session" in hints:  # a sub-agent has a session of its own
        hints.setdefault("agent", hints["session"])
        hints.setdefault("parent_agent", hints["parent_session"])
    return hints, retry


def _codex(value: bytes) -> dict[str, str]:
    try:
        said = json.loads(value)
    except ValueError:
        return {}
    if not isinstance(said, dict):
        return {}
    return {
        f"codex_{name}": str(said[name])[:256]
        for name in ("agent_name", "request_kind")
        if said.get(name)
    }


def _estimate(body: dict[str, Any]) -> int:
    """Return an estimate of a request's tokens; the proxy has no tokenizer to count them."""
    said = {name: body.get(name) for name in ("system", "messages", "tools")}
    return max(1, len(json.dumps(said, ensure_ascii=False)) // _CHARS_PER_TOKEN)
