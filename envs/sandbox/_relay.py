"""Forwards connections from a sandbox without network to the endpoints that it may reach."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._net import listen_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.envs.sandbox._routes import Route

__all__ = ["Relay"]

_log = logging.getLogger(__name__)
CONNECTIONS = 64
"""Maximum number of simultaneous connections of one sandbox; more are refused."""
DIAL_SECONDS = 10.0
SILENT_SECONDS = 600.0
CHUNK = 1 << 16


class Relay:
    """Listens inside a sandbox's network namespace and connects from this host's.

    Inside, a name resolves to an address of the sandbox's own loopback interface. Nothing else has
    a route out: no name server, no other host, no other port. TCP only.

    Args:
        name: name of the sandbox, for messages.
        routes: the endpoints.
    """

    def __init__(self, name: str, routes: Sequence[Route]) -> None:
        self._name = name
        self._routes = tuple(routes)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, namespace: int) -> None:
        """Start listening.

        Args:
            namespace: a descriptor, needed only until this returns.

        Raises:
            OSError: this process is not permitted to enter it.
        """
        listening = asyncio.ensure_future(asyncio.to_thread(listen_in, namespace, self._routes))
        try:
            sockets = await asyncio.shield(listening)
        except asyncio.CancelledError:
            listening.add_done_callback(_close_sockets)
            raise
        for route, listener in zip(self._routes, sockets, strict=True):
            serve = partial(self._accept, route)
            self._servers.append(await asyncio.start_server(serve, sock=listener, limit=CHUNK))

    def _accept(
        self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(self._tasks) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(route, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        outside: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                answers, outside = await _dial(route)
            await _carry_both((reader, outside), (answers, writer))
        except (OSError, TimeoutError) as error:
            _log.info("%s: %s:%d: %s", self._name, route.host, route.port, error or "silent")
        finally:
            for each in (writer, outside):
                if each is not None:
                    each.transport.abort()

    async def close(self) -> None:
        """Close every connection and stop listening. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _dial(route: Route) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(route.target, route.target_port, type=socket.SOCK_STREAM)
    refusal: OSError | None = None
    for _, _, _, _, place in found:
        address = str(place[0])
        # A name server must not be able to choose an address in this host's own networks.
        if not route.given and not ipaddress.ip_address(address.partition("%")[0]).is_global:
            refusal = OSError(f"{address} is not public: allow it by name:port={address}:port")
            continue
        try:
            return await asyncio.open_connection(address, route.target_port, limit=CHUNK)
        except OSError as error:
            refusal = error
    raise refusal or OSError("no address")


async def _carry_both(
    *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SILENT_SECONDS) as deadline:

        async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(CHUNK):
                deadline.reschedule(loop.time() + SILENT_SECONDS)
                target.write(data)
                await target.drain()
            with contextlib.suppress(OSError):
                target.write_eof()

        carriers = [asyncio.create_task(carry(*way)) for way in ways]
        try:
            await asyncio.gather(*carriers)
        finally:
            for carrier in carriers:
                carrier.cancel()
            await asyncio.wait(carriers)


def _close_sockets(listening: asyncio.Future[list[socket.socket]]) -> None:
    if not listening.cancelled() and listening.exception() is None:
        for each in listening.result():
            each.close()
