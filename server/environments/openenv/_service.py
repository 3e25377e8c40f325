"""The endpoints of served environments for OpenEnv's clients."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from trajgym.envs import tools_of
from trajgym.server._auth import bearer_of
from trajgym.server._errors import Refused
from trajgym.server._json import dumps
from trajgym.server.environments.openenv._answers import Json, listed, rpc
from trajgym.server.environments.openenv._documents import SCHEMAS, metadata, openapi
from trajgym.server.environments.openenv._player import Player

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs import EnvSpec
    from trajgym.server._auth import Auth
    from trajgym.server._limits import Limits
    from trajgym.server.environments._sessions import PlayedSessions
    from trajgym.trajectory import Task

__all__ = ["OpenEnvService"]


class OpenEnvService:
    """Serves ``/envs/NAME/openenv``, the URL that OpenEnv's clients are given.

    Args:
        specs: environments by name.
        sessions: where episodes are played.
        auth: checks tokens; OpenEnv's clients send one in ``headers``.
        limits: limits on sessions.
        tasks: tasks by environment, for episodes that name one by id or leave the choice to the
            server: the seed's, or the next in order.
    """

    def __init__(
        self,
        specs: Mapping[str, EnvSpec],
        sessions: PlayedSessions,
        auth: Auth,
        limits: Limits,
        tasks: Mapping[str, Sequence[Task]],
    ) -> None:
        self.specs = specs
        self.sessions = sessions
        self._auth = auth
        self._tasks = {name: list(tasks.get(name, ())) for name in specs}
        self._given = dict.fromkeys(specs, 0)
        self._limits = limits
        self._players: dict[tuple[str, str], Player] = {}
        """Sessions that requests to ``/mcp`` have created."""

    def choose(self, env: str, wanted: object, seed: int | None) -> Any:
        """Return the task of an episode, in the form of :class:`PlayedSessions`.

        Raises:
            Refused: there is no such task.
        """
        known = self._tasks[env]
        if isinstance(wanted, dict):
            return wanted
        if isinstance(wanted, str):
            found = next((task for task in known if task.id == wanted), None)
            if found is None and known:
                raise Refused(400, f"task: no task {wanted!r} among the {len(known)} served")
            return wanted if found is None else found.model_dump(mode="json")
        if wanted is not None:
            raise Refused(400, "task: expected the id of a task, or a task as an object")
        if not known:
            return "default"
        if seed is None:
            seed = self._given[env]
            self._given[env] += 1
        return known[seed % len(known)].model_dump(mode="json")

    async def describe(self, env: str, parts: list[str], method: str, body: bytes) -> bytes:
        """Answer a request over HTTP for ``/envs/NAME/openenv/…``.

        Raises:
            Refused: there is no such endpoint.
        """
        where = f"{method} {'/'.join(parts)}"
        if where == "POST mcp":
            return dumps(await rpc(body, lambda name, given: self._method(env, name, given)))
        if where == "GET health":
            return dumps({"status": "healthy"})
        if where == "GET metadata":
            return dumps(metadata(env, self.specs[env]))
        if where == "GET schema":
            return dumps(SCHEMAS)
        if where == "GET openapi.json":
            return dumps(openapi(env))
        raise Refused(
            404,
            f"no {where}; there are GET health, metadata, schema and openapi.json, POST mcp, and "
            "the WebSocket ws, over which episodes are played",
        )

    async def play(self, env: str, scope: Json, receive: Any, send: Any) -> None:
        """Serve a WebSocket: any number of episodes, one after the other.

        With ``session_id``, it shares its episodes with the requests to ``/mcp`` that name the
        same session.
        """
        await receive()
        named = parse_qs(scope.get("query_string", b"").decode()).get("session_id")
        try:
            self._auth.check(bearer_of(scope["headers"]))
            player = Player(self, env) if named is None else self._player(env, named[0])
        except Refused:
            await send({"type": "websocket.close", "code": 1008})  # before accept: status 403
            return
        player.attached = True
        try:
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                answer = await player.answer(message.get("text") or message.get("bytes") or "")
                if answer is None:
                    await player.leave()
                    await send({"type": "websocket.close", "code": 1000})
                    return
                await send({"type": "websocket.send", "text": dumps(answer).decode()})
        except OSError:
            return  # the client is gone
        finally:
            player.attached = False
            await player.leave()

    def tools(self, env: str) -> list[Json]:
        """Return the tools of an environment in OpenEnv's form."""
        tools = tools_of(self.specs[env].resolve()).values()
        functions = [tool.schema["function"] for tool in tools]
        return [
            {
                "name": one["name"],
                "description": one["description"],
                "input_schema": one["parameters"],
            }
            for one in functions
        ]

    async def _method(self, env: str, method: str, params: Json) -> Json:
        """Return the result of a method of ``/mcp``."""
        name = params.get("session_id")
        if method == "openenv/session/create":
            return {"session_id": self._create(env)}
        if name is None and method == "tools/list":
            return listed(self.tools(env))
        player = self._player(env, name)
        if method == "openenv/session/close":
            del self._players[env, str(name)]
            await player.leave()
            return {"session_id": name, "closed": True}
        return await player.call(method, params)

    def _create(self, env: str) -> str:
        now = time.monotonic()
        self._players = {
            key: player
            for key, player in self._players.items()
            if player.attached or now - player.used_at < self._limits.environment_seconds
        }
        if len(self._players) >= self._limits.environments:
            raise Refused(503, f"{self._limits.environments} sessions are open")
        name = uuid.uuid4().hex
        self._players[env, name] = Player(self, env)
        return name

    def _player(self, env: str, name: object) -> Player:
        found = self._players.get((env, str(name)))
        if found is None:
            raise Refused(404, f"no session {name!r}; create one with openenv/session/create")
        return found
