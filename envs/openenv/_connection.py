"""The WebSocket connection to one session of an OpenEnv server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from trajgym.envs._errors import EnvironmentFault
from trajgym.trajectory._internal import MissingExtra

__all__ = ["Connection", "Rejected"]

_CONNECT_SECONDS = 10.0
_MESSAGE_BYTES = 100 << 20
"""OpenEnv's own client has the same limit."""
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0


class Rejected(Exception):
    """The server did not accept an action (code ``VALIDATION_ERROR``); the message says why."""


class Connection:
    """One session of a server, which has its own instance of the environment.

    Args:
        url: the server's URL, as an OpenEnv client takes it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._http: Any = None
        self._socket: Any = None

    async def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        """Connect and start an episode; wait for as long as all sessions of the server are in use.

        Raises:
            EnvironmentFault: the server can't be reached, or it failed.
            MissingExtra: aiohttp is not installed.
        """
        wait = _FIRST_WAIT
        while True:
            await self._connect()
            answer = await self._exchange({"type": "reset", "data": data})
            if _code(answer) != "CAPACITY_REACHED":
                return self._observation(answer)
            await self.close()
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """Execute an action; return ``observation``, ``reward`` and ``done``.

        Raises:
            Rejected: the action is not valid.
            EnvironmentFault: the connection was lost, or the server failed.
        """
        return self._observation(await self._exchange({"type": "step", "data": action}))

    async def close(self) -> None:
        """Close the connection, which ends the server's session.

        A connection that still waits for an answer is cut: its server may be busy for long.
        """
        socket, self._socket = self._socket, None
        http, self._http = self._http, None
        try:
            if socket is not None and not socket.closed:
                await socket.send_str('{"type": "close"}')
                await socket.close()
        except ConnectionError:
            pass  # the server closed it first
        finally:
            if http is not None:
                await http.close()

    async def _connect(self) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtra("aiohttp", "server") from error
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        self._http = aiohttp.ClientSession(timeout=timeout)
        try:
            self._socket = await self._http.ws_connect(
                f"{self._url}/ws", max_msg_size=_MESSAGE_BYTES
            )
        except (aiohttp.ClientError, OSError) as error:
            await self.close()
            raise EnvironmentFault("env", f"{self._url}: no connection: {error}") from error

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        import aiohttp

        socket = self._socket
        if socket is None:
            raise EnvironmentFault("env", f"{self._url}: the connection is closed")
        self._socket = None  # until it has answered: a later request would receive this answer
        # A server without a free session may have sent its answer already, and closed.
        with contextlib.suppress(ConnectionError):
            await socket.send_str(json.dumps(message))
        try:
            received = await socket.receive()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EnvironmentFault("env", f"{self._url}: connection lost: {error}") from error
        if received.type is not aiohttp.WSMsgType.TEXT:
            raise EnvironmentFault("env", f"{self._url}: the server closed the connection")
        self._socket = socket
        try:
            answer = json.loads(received.data)
        except ValueError as error:
            raise EnvironmentFault("env", f"{self._url}: the answer is not JSON") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise EnvironmentFault("env", f"{self._url}: unexpected answer {received.data[:200]}")
        return answer

    def _observation(self, answer: dict[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = answer["data"]
        if answer.get("type") == "error":
            if _code(answer) == "VALIDATION_ERROR":
                raise Rejected(_problems(data))
            raise EnvironmentFault(
                "env", f"{self._url}: {data.get('message', 'error')} ({data.get('code')})"
            )
        if not isinstance(data.get("observation"), dict):
            raise EnvironmentFault("env", f"{self._url}: an answer without an observation")
        return data


def _code(answer: dict[str, Any]) -> Any:
    return answer["data"].get("code") if answer.get("type") == "error" else None


def _problems(data: dict[str, Any]) -> str:
    """Return the errors of pydantic that the server reports, by field."""
    found = data.get("errors")
    if not isinstance(found, list):
        return str(data.get("message"))
    return "; ".join(
        f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}"
        for one in found
        if isinstance(one, dict)
    )
