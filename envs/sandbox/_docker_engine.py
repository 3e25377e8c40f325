"""One connection to a Docker engine: calls in threads, each with a deadline, and exec streams."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs.sandbox._errors import SandboxError, SandboxUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "SLOW_SECONDS",
    "ContainerGone",
    "DockerEngine",
    "EngineLost",
    "EngineRefused",
    "ExecStream",
    "translated",
    "unavailable",
]

T = TypeVar("T")
DEFAULT_HOST = "unix:///var/run/docker.sock"
HELP = "start one (scripts/docker-engine.sh), set DOCKER_HOST to one, or use the embedded sandbox"
QUICK_SECONDS = 60
SLOW_SECONDS = 600


class EngineLost(SandboxError):
    """The engine does not answer (any more)."""


class ContainerGone(SandboxError):
    """The engine has no such running container, exec or image."""


class EngineRefused(SandboxError):
    """The engine answered with an error; the message is its own."""


class ExecStream:
    """The attached stream of one exec: stdin down, stdout and stderr up, in frames.

    Args:
        reader: positioned behind the response's headers.
        writer: the other direction of the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._header = b""
        self._kind = 0
        self._left = 0

    async def send(self, data: bytes) -> None:
        """Send all of it; quietly stops where the other side no longer listens."""
        try:
            for at in range(0, len(data), 1 << 18):
                self._writer.write(data[at : at + (1 << 18)])
                await self._writer.drain()
            if self._writer.can_write_eof():
                self._writer.write_eof()
        except OSError:
            return

    async def receive(self) -> list[tuple[int, bytes]] | None:
        """Return the next pieces as (1 stdout or 2 stderr, bytes); None at the end."""
        try:
            data = await self._reader.read(1 << 18)
        except OSError:
            return None
        return self._pieces(data) if data else None

    def _pieces(self, data: bytes) -> list[tuple[int, bytes]]:
        pieces = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                pieces.append((self._kind, piece))
                self._left -= len(piece)
                at += len(piece)
                continue
            need = 8 - len(self._header)
            self._header += data[at : at + need]
            at += need
            if len(self._header) == 8:
                self._kind = self._header[0]
                self._left = int.from_bytes(self._header[4:], "big")
                self._header = b""
        return pieces

    def close(self) -> None:
        """Drop the connection at once; a pending :meth:`send` ends."""
        self._writer.transport.abort()


class DockerEngine:
    """A Docker engine, spoken to through the SDK's low-level client.

    Args:
        host: as in ``DOCKER_HOST``; None takes that, or the local socket.
    """

    def __init__(self, host: str | None = None) -> None:
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        cores = os.cpu_count() or 1
        # More starts at once than this only make each of them slower.
        self._starts = ThreadPoolExecutor(2 * cores, "trajgym-docker-start")
        self._calls = ThreadPoolExecutor(32, "trajgym-docker")
        self._clients: dict[int, Any] = {}
        self._cpus = 0

    def client(self, seconds: int = QUICK_SECONDS) -> Any:
        """Return the SDK's client whose requests end after so many seconds. Blocks.

        Raises:
            EngineLost: no engine answers.
        """
        self._knock()
        client = self._clients.get(seconds)
        if client is None:
            client = translated(partial(_connect, self.host, seconds))
            self._clients[seconds] = client
        return client

    def cpus(self) -> int:
        """How many processors the engine has. Blocks."""
        self._cpus = self._cpus or int(self.client().info()["NCPU"])
        return self._cpus

    def _knock(self) -> None:
        """Find out whether a local engine listens; the SDK would leak a socket each time."""
        scheme, _, path = self.host.partition("://")
        if scheme != "unix":
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(QUICK_SECONDS)
            try:
                probe.connect(path)
            except OSError as error:
                raise EngineLost(f"{path}: {error.strerror or error}") from None

    async def call(
        self,
        work: Callable[[Any], T],
        *,
        seconds: float = QUICK_SECONDS,
        patience: int = QUICK_SECONDS,
    ) -> T:
        """Run ``work(client)`` in a thread.

        Args:
            work: blocking; its SDK errors are translated.
            seconds: deadline of the wait; the thread itself ends at its client's timeout.
            patience: after so many seconds the thread's request ends by itself; the interpreter
                can't exit before.

        Raises:
            EngineLost: it does not answer, or not in time.
            ContainerGone: it does not know what was asked for, or that does not run.
            EngineRefused: any other answer that is an error.
        """
        try:
            future = self._calls.submit(lambda: translated(lambda: work(self.client(patience))))
        except RuntimeError:
            raise EngineLost("this provider is closed") from None
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise EngineLost(f"no answer from {self.host} in {seconds:g} s") from None

    def submit_start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` when one of the few threads that create and start containers is free."""
        return asyncio.wrap_future(self._starts.submit(lambda: translated(work)))

    async def open_exec(self, exec_id: str, *, seconds: float = 30.0) -> ExecStream:
        """Start an exec that was created and attach to it.

        Raises:
            EngineLost, ContainerGone, EngineRefused: as for :meth:`call`.
        """
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await self._dial()
                try:
                    await self._upgrade(exec_id, reader, writer)
                except BaseException:
                    writer.close()
                    raise
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise EngineLost(f"no answer from {self.host}: {error}") from None
        return ExecStream(reader, writer)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        scheme, _, rest = self.host.partition("://")
        if scheme == "unix":
            return await asyncio.open_unix_connection(rest, limit=1 << 20)
        name, _, port = rest.rstrip("/").rpartition(":")
        return await asyncio.open_connection(name, int(port), limit=1 << 20)

    async def _upgrade(
        self, exec_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        head = (
            f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\n"
            "Content-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(b" ", 2)[1])
        if status in {101, 200}:
            return
        said = (await reader.read(4096)).decode(errors="replace").strip()
        kind = ContainerGone if status in {404, 409} else EngineRefused
        raise kind(f"the engine answered {status}: {said}")

    def shutdown(self) -> None:
        """Let go of threads and connections; threads that still wait for the engine end later."""
        self._starts.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def _connect(host: str, seconds: int) -> Any:
    import docker

    if host.partition("://")[0] not in {"unix", "tcp"} or os.environ.get("DOCKER_TLS_VERIFY"):
        raise SandboxUnavailable(
            f"engine {host}: only unix:// and plain tcp:// are spoken here; "
            "forward the engine's socket (ssh -L) and set DOCKER_HOST=unix://…"
        )
    return docker.APIClient(base_url=host, version="auto", timeout=seconds)


def translated(work: Callable[[], T]) -> T:
    """Run blocking SDK code with its errors turned into ours.

    Raises:
        EngineLost, ContainerGone, EngineRefused: see :meth:`DockerEngine.call`.
    """
    import docker.errors
    import requests
    import urllib3

    try:
        return work()
    except docker.errors.APIError as error:
        said = error.explanation or str(error)
        if isinstance(error, docker.errors.NotFound) or error.status_code == 409:
            raise ContainerGone(str(said)) from error
        raise EngineRefused(str(said)) from error
    except (
        docker.errors.DockerException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
    ) as error:
        raise EngineLost(f"no Docker engine answers: {error}") from error


def unavailable(host: str, reason: object) -> SandboxUnavailable:
    """The error for people that no engine answers."""
    return SandboxUnavailable(f"no Docker engine answers at {host} ({reason}); {HELP}")
