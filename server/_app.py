"""The application: agents' endpoints are plain ASGI, everything else is routed by Starlette."""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.server._auth import Auth
from trajgym.server._limits import Limits
from trajgym.server._proxy import Proxy
from trajgym.server.control import Control
from trajgym.server.environments import EnvHost, is_env_path
from trajgym.server.feeding import FeedApi, FeedLog, GroupBook
from trajgym.server.judging import JudgeWork
from trajgym.server.sessions import SessionBook, Settings
from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from trajgym.envs import EnvSpec
    from trajgym.server.judging import Judges
    from trajgym.server.upstream import Upstream
    from trajgym.trajectory import Store, Task

__all__ = ["App", "EnvApp", "ServerConfig"]

_VERSION = "server.policy_version"


@dataclass(slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server.

    Args:
        secret: the admin token; without one every client may do everything, and only loopback
            addresses can be bound.
        judge_token: a token that may only read sessions and add signals.
        trainer_token: a token that may only read the feed, acknowledge it, and control pauses and
            policy versions.
        url: the server's address as agents see it, used in the URLs that it returns; taken from the
            request if None.
        limits: limits on time and size.
        signal_seconds: how long a complete group waits for signals of the judge before it is
            sealed; 0 does not wait.
        feed_bytes: a response of the feed with several groups ends once it has this size.
        feed_behind: no group can be opened while the slowest consumer of the feed is this many
            groups behind; None sets no bound.
        redact: regular expressions; what they match is stored as ``[redacted]``. Token
            ids are not redacted: an exact turn still holds the tokens of the text.

    Raises:
        InvalidInput: a rule is not a regular expression.
    """

    secret: str | None = field(default=None, repr=False)
    judge_token: str | None = field(default=None, repr=False)
    trainer_token: str | None = field(default=None, repr=False)
    url: str | None = None
    limits: Limits = field(default_factory=Limits)
    signal_seconds: float = 30.0
    feed_bytes: int = 64 << 20
    feed_behind: int | None = None
    redact: Sequence[str] = ()

    def auth(self) -> Auth:
        """Return what checks the tokens."""
        return Auth(self.secret, self.judge_token, self.trainer_token)

    def rules(self) -> list[re.Pattern[str]]:
        """Return the compiled rules."""
        try:
            return [re.compile(rule) for rule in self.redact]
        except re.error as error:
            raise InvalidInput(f"redact: {error}") from error


class App:
    """The session server as an ASGI application.

    Args:
        store: where sessions are recorded; the caller closes it.
        upstream: the engine; closed at shutdown.
        config: settings; the defaults if None.
        environments: environments to serve as well, by name; see :class:`EnvApp`.
        judges: annotate turns as they arrive; nothing does if None.
        tasks: tasks by environment; see :class:`EnvApp`.
    """

    def __init__(
        self,
        store: Store,
        upstream: Upstream,
        config: ServerConfig | None = None,
        environments: Mapping[str, EnvSpec] | None = None,
        judges: Judges | None = None,
        tasks: Mapping[str, Sequence[Task]] | None = None,
    ) -> None:
        config = config or ServerConfig()
        self.limits = config.limits
        try:
            from starlette.applications import Starlette
        except ImportError as error:
            raise MissingExtra("starlette", "server") from error
        from trajgym.server._api import Api

        with store.read() as run:
            version = int(run.meta().get(_VERSION, "0"))
        control = Control(version, keep=lambda v: store.set_meta(_VERSION, str(v)))
        self.settings = Settings(
            store=store,
            upstream=upstream,
            control=control,
            limits=config.limits,
            redact=config.rules(),
            log=logging.getLogger("trajgym.server"),
        )
        self.auth = config.auth()
        self.book = SessionBook(self.settings)
        self.feed = FeedLog(
            store, control, most_bytes=config.feed_bytes, most_behind=config.feed_behind
        )
        self.judging = None if judges is None else JudgeWork(self.book, judges)
        if self.judging is not None:
            self.settings.listeners.append(self.judging.note)
        self.groups = GroupBook(
            self.settings,
            self.feed.refresh,
            signals=self.judging,
            signal_seconds=config.signal_seconds,
            full=self.feed.full,
        )
        self.settings.listeners.append(self.groups.note)
        self._proxy = Proxy(self.book, self.auth)
        self._host = EnvHost(environments or {}, self.auth, config.limits, store, tasks)
        api = Api(self.book, self.groups, self.feed, self.auth, config.url, self.judging)
        feed = FeedApi(self.groups, self.feed, api.guarded, api.body, config.limits.poll_seconds)
        routes = api.routes() + feed.routes()
        self._api = Starlette(routes=routes, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        del app
        await self._host.start()
        if self.judging is not None:
            self.judging.start()
        self.groups.start()
        try:
            yield
        finally:
            await self._host.shut()
            await self.groups.shut()
            if self.judging is not None:
                await self.judging.shut()
            await self.book.shut()
            await self.settings.upstream.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request; agents' calls bypass Starlette."""
        if scope["type"] == "http" and scope["path"].startswith(("/sessions/", "/v1/")):
            await self._proxy(scope, receive, send)
        elif scope["type"] != "lifespan" and is_env_path(scope["path"]):
            await self._host(scope, receive, send)
        else:
            await self._api(scope, receive, send)


class EnvApp:
    """An ASGI application that serves environments only, without an engine.

    Clients use ``EnvSpec(id="http://host:port/envs/NAME")`` like any other environment. They need
    the secret, where there is one, as ``TRAJGYM_ENV_TOKEN``. Other programs play sessions with
    requests to ``/envs/NAME/sessions``. OpenEnv's clients take ``http://host:port/envs/NAME/openenv``
    as their base URL, and the secret in ``headers``.

    Args:
        environments: what to serve, by the name in its URL.
        config: settings; the defaults if None.
        store: where sessions of ``/envs/NAME/sessions`` are recorded; the caller closes it. None
            keeps each in memory until it is closed.
        tasks: tasks by environment, for OpenEnv's clients, which start an episode with the id of a
            task, or leave the choice to the server.

    Raises:
        InvalidInput: a name contains a slash.
    """

    def __init__(
        self,
        environments: Mapping[str, EnvSpec],
        config: ServerConfig | None = None,
        store: Store | None = None,
        tasks: Mapping[str, Sequence[Task]] | None = None,
    ) -> None:
        config = config or ServerConfig()
        self.limits = config.limits
        self.auth = config.auth()
        self.host = EnvHost(environments, self.auth, config.limits, store, tasks)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request, or the server's life cycle."""
        if scope["type"] != "lifespan":
            await self.host(scope, receive, send)
            return
        await receive()
        try:
            await self.host.start()
        except Exception as error:  # noqa: BLE001 - boundary: environment code; uvicorn exits
            await send({"type": "lifespan.startup.failed", "message": repr(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.host.shut()
        await send({"type": "lifespan.shutdown.complete"})
