"""The part of the server that agent programs reach: the recording proxy, and nothing else."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trajgym.server._auth import Auth
from trajgym.server._errors import Refused
from trajgym.server._http import respond
from trajgym.server._proxy import Proxy
from trajgym.server._serve import running

if TYPE_CHECKING:
    from trajgym.server._limits import Limits
    from trajgym.server.sessions import LiveSession, Settings

__all__ = ["Listener"]


class _Open:
    """The sessions whose programs are running."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sessions: dict[str, LiveSession] = {}

    def find(self, session_id: str) -> LiveSession:
        found = self.sessions.get(session_id)
        if found is None:
            raise Refused(404, f"no session {session_id!r} is running", kind="not_found_error")
        return found


class _ProxyApp:
    """An ASGI application with the endpoints for agents only.

    Those for trainers are left out: a program must not be able to reward itself.
    """

    def __init__(self, opened: _Open, auth: Auth, limits: Limits) -> None:
        self.auth = auth
        self.limits = limits
        self._proxy = Proxy(opened, auth)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http" and scope["path"].startswith(("/sessions/", "/v1/")):
            await self._proxy(scope, receive, send)
        elif scope["type"] == "http":
            await respond(send, 404, b"{}")


class Listener:
    """Serves the proxy on a free loopback port, from the first session on.

    Each session has a token of its own, which is not valid for another one.

    Args:
        settings: what the sessions share.
    """

    def __init__(self, settings: Settings) -> None:
        self._open = _Open(settings)
        self._auth = Auth(secrets.token_hex(32))
        self._limits = settings.limits
        self._exits = AsyncExitStack()
        self._port: asyncio.Task[int] | None = None
        self.loop = asyncio.get_running_loop()

    @property
    def settings(self) -> Settings:
        """What the sessions share."""
        return self._open.settings

    async def port(self) -> int:
        """Return the port; starts the server at the first call."""
        if self._port is None:
            self._port = self.loop.create_task(self._start())
        return await asyncio.shield(self._port)

    async def _start(self) -> int:
        app = _ProxyApp(self._open, self._auth, self._limits)
        port = urlsplit(await self._exits.enter_async_context(running(app))).port
        assert port is not None
        return port

    def token(self, session_id: str) -> str:
        """Return the token of a session."""
        return self._auth.session_token(session_id)

    def add(self, session: LiveSession) -> None:
        """Serve a session."""
        self._open.sessions[session.id] = session

    def remove(self, session_id: str) -> None:
        """Serve a session no longer. Idempotent."""
        self._open.sessions.pop(session_id, None)

    async def close(self) -> None:
        """Stop the server and the calls that are running."""
        if self._port is not None:
            await asyncio.wait([self._port])
        for task in list(self.settings.tasks):
            task.cancel()
        await self._exits.aclose()
