"""What plain ASGI endpoints share: a JSON object in, a whole response out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server._json import loads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Send = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ["json_object", "respond"]


def json_object(raw: bytes) -> dict[str, Any]:
    """Parse a request body.

    Raises:
        Refused: 400 if it is not a JSON object.
    """
    try:
        body = loads(raw)
    except ValueError as error:
        raise Refused(400, f"the request body is not JSON: {error}") from error
    except RecursionError as error:
        raise Refused(400, "the request body is nested too deeply") from error
    if not isinstance(body, dict):
        raise Refused(400, "the request body must be a JSON object")
    return body


async def respond(
    send: Send,
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    close: bool = False,
) -> None:
    """Send a whole JSON response; ``close`` ends the connection after it."""
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fields += headers or []
    if close:
        fields.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
