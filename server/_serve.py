"""Running the application under uvicorn."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from trajgym.server._auth import check_bind
from trajgym.server._connection import protocol
from trajgym.server._errors import ServerError
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from trajgym.server._auth import Auth
    from trajgym.server._limits import Limits

__all__ = ["listen", "run", "running", "serve", "url_of"]

_GC_THRESHOLD = (50_000, 20, 100)


class Served(Protocol):
    """An ASGI application with the settings of its server."""

    @property
    def auth(self) -> Auth:
        """Decides to which addresses the server may bind."""

    @property
    def limits(self) -> Limits:
        """Of connections and requests."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request, or the server's life cycle."""


def _server(app: Served, host: str, port: int) -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "server") from error
    check_bind(host, app.auth)
    limits = app.limits
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=protocol(limits.header_seconds, limits.send_seconds),
            ws="auto",
            ws_max_size=limits.body_bytes,
            lifespan="on",
            access_log=False,
            log_level="warning",
            timeout_keep_alive=int(limits.idle_seconds),
            timeout_graceful_shutdown=10,
            limit_concurrency=limits.connections,
            server_header=False,
        )
    )


async def _contained(server: Any, bound: socket.socket) -> None:
    """Serve; uvicorn exits the process if startup fails, which is an error of ours instead."""
    try:
        await server._serve([bound])
    except SystemExit as error:
        raise ServerError("the server could not start; see the log") from error


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a server's coroutine in a new event loop; uvloop's where it is installed.

    The process is the server's own: cyclic garbage is collected less often than Python's default,
    because every recorded turn stays reachable and each collection would visit all of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address, on a free port if ``port`` is 0.

    Raises:
        InvalidInput: the address can't be listened on, for example because the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"can't listen on {host} port {port}: {error}; choose another address or port"
        ) from error
    # Connections inherit it. asyncio sets it only where the socket names its protocol, which this
    # one does not; without it, the body of a response waits 40 ms for the headers' acknowledgement.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: Served,
    *,
    host: str = "127.0.0.1",
    port: int = 8100,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: the application.
        host: address to bind to.
        port: port to bind to; a free one if 0.
        ready: called with the URL as soon as clients can connect.

    Raises:
        InvalidInput: the address is not loopback and the server has no secret, or it can't be
            listened on.
        MissingExtra: uvicorn is not installed.
    """
    server = _server(app, host, port)
    with listen(host, port) as bound:
        if ready is not None:
            ready(url_of(bound))
        await server.serve([bound])


@asynccontextmanager
async def running(app: Served, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in this event loop while the block runs, and yield the URL.

    Args:
        app: the application.
        host: address to bind to.
        port: port to bind to; a free one if 0.

    Raises:
        InvalidInput: the address is not loopback and the server has no secret, or it can't be
            listened on.
    """
    server = _server(app, host, port)
    bound = listen(host, port)
    task = asyncio.get_running_loop().create_task(_contained(server, bound))
    try:
        while not server.started:
            if task.done():
                await task
                raise ServerError("the server exited before it had started")
            await asyncio.sleep(0.005)
        yield url_of(bound)
    finally:
        server.should_exit = True
        try:
            if not task.done():
                await task
        finally:
            bound.close()
