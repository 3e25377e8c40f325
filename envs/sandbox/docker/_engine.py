"""One connection to a Docker engine: calls in threads, each with a deadline."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trajgym.envs.sandbox._errors import SandboxUnavailable
from trajgym.envs.sandbox.docker._errors import ContainerGone, EngineLost, EngineRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs.sandbox.docker._directories import Directories

__all__ = [
    "SLOW_SECONDS",
    "DockerEngine",
    "translated",
    "unavailable",
]

T = TypeVar("T")
DEFAULT_HOST = "unix:///var/run/docker.sock"
HELP = "start one (scripts/docker-engine.sh), set DOCKER_HOST to one, or use the embedded sandbox"
QUICK_SECONDS = 60
SLOW_SECONDS = 600


class DockerEngine:
    """A Docker engine, called through the SDK's low-level client.

    Args:
        host: as in ``DOCKER_HOST``; None takes that, or the local socket.
        runtime: runtime of containers, by its name in the engine; None is the engine's own.
    """

    def __init__(self, host: str | None = None, runtime: str | None = None) -> None:
        self.runtime = runtime
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        cores = os.cpu_count() or 1
        # More concurrent starts only make each of them slower.
        self._starts = ThreadPoolExecutor(2 * cores, "trajgym-docker-start")
        self._calls = ThreadPoolExecutor(32, "trajgym-docker")
        self._clients: dict[int, Any] = {}
        self._cpus = 0
        self.directories: dict[tuple[str, str, str], Directories] = {}
        """Directories of new containers, by the image's id, user and working directory."""

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
        """Return how many processors the engine has. Blocks."""
        self._cpus = self._cpus or int(self.client().info()["NCPU"])
        return self._cpus

    def _knock(self) -> None:
        """Check whether a local engine listens; the SDK would leak a socket each time."""
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
            patience: seconds after which the thread's request ends by itself; until then the
                interpreter can't exit.

        Raises:
            EngineLost: it does not answer, or not in time.
            ContainerGone: there is no such container, or it does not run.
            EngineRefused: it answered with any other error.
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

    def shutdown(self) -> None:
        """Close threads and connections; threads that are waiting for the engine end later."""
        self._starts.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def _connect(host: str, seconds: int) -> Any:
    import docker

    if host.partition("://")[0] not in {"unix", "tcp"} or os.environ.get("DOCKER_TLS_VERIFY"):
        raise SandboxUnavailable(
            f"engine {host}: only unix:// and plain tcp:// are supported; "
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
        text = error.explanation or str(error)
        if isinstance(error, docker.errors.NotFound) or error.status_code == 409:
            raise ContainerGone(str(text)) from error
        raise EngineRefused(str(text)) from error
    except (
        docker.errors.DockerException,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        ConnectionError,
    ) as error:
        raise EngineLost(f"no Docker engine answers: {error}") from error


def unavailable(host: str, reason: object) -> SandboxUnavailable:
    """Return the error for an engine that does not answer."""
    return SandboxUnavailable(f"no Docker engine answers at {host} ({reason}); {HELP}")
