"""Limits on clients, and reading a request body within them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trajgym.server._connection import connection_of
from trajgym.server._errors import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["ClientGone", "Limits", "read_body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on time and size.

    Args:
        body_bytes: largest request body.
        header_seconds: from opening a connection to the end of its first request's headers; later
            requests count from their first byte.
        body_seconds: for a request body to arrive.
        send_seconds: for a client to accept a chunk of a response.
        idle_seconds: how long a connection may be idle between two requests; tools can run for
            minutes.
        hold_seconds: longest time that a call waits for a paused engine; keep it below clients'
            read timeouts (the shortest default among common agents is 300 s).
        keep_alive_seconds: silence in a stream after which a comment is sent to the client.
        attach_seconds: how long a call continues after its client disconnected; a retry within this
            time attaches to it.
        close_seconds: how long closing a session waits for its calls in progress.
        poll_seconds: longest time that a poll of the feed waits for a group; less than what proxies
            in between permit.
        environments: largest number of open environments.
        environment_seconds: how long an open environment may be unused; its sessions' policies may
            be slow, but a client that was killed must not keep it.
        connections: largest number of simultaneous connections.
    """

    body_bytes: int = 64 << 20
    header_seconds: float = 20.0
    body_seconds: float = 120.0
    send_seconds: float = 60.0
    idle_seconds: float = 900.0
    hold_seconds: float = 240.0
    keep_alive_seconds: float = 15.0
    attach_seconds: float = 15.0
    close_seconds: float = 30.0
    poll_seconds: float = 55.0
    environments: int = 256
    environment_seconds: float = 3600.0
    connections: int = 4096


class ClientGone(Exception):
    """The client closed its connection."""


async def read_body(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], limits: Limits
) -> bytes:
    """Read a request body.

    Raises:
        Refused: 413 if it is too large (before it is read if Content-Length is), 408 if it arrives
            too slowly.
        ClientGone: the connection closed.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > limits.body_bytes):
            raise _too_large(limits)
    connection = connection_of(scope)
    if connection is not None and connection.complete:
        message = await receive()  # which does not wait
    else:
        message = await _first(receive, limits)
    if message["type"] == "http.disconnect":
        raise ClientGone
    data: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return _checked(data, limits)
    parts, size = [data], len(data)
    try:
        async with asyncio.timeout(limits.body_seconds):
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError as error:
        raise _too_slow(limits) from error
    return b"".join(parts)


async def _first(receive: Callable[[], Awaitable[Any]], limits: Limits) -> Any:
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await receive()
    except TimeoutError as error:
        raise _too_slow(limits) from error


def _checked(data: bytes, limits: Limits) -> bytes:
    if len(data) > limits.body_bytes:
        raise _too_large(limits)
    return data


def _too_large(limits: Limits) -> Refused:
    return Refused(413, f"the request is larger than {limits.body_bytes} bytes")


def _too_slow(limits: Limits) -> Refused:
    return Refused(408, f"the request did not arrive within {limits.body_seconds:g} s")
