"""Serving environments: one instance per attempt of a client's session."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from trajgym.envs import Env, Remaining, tools_of
from trajgym.envs._runs import close_runs, open_runs
from trajgym.envs._threads import Worker
from trajgym.envs.faults import contained
from trajgym.envs.remote._wire import (
    opening_to_json,
    outcome_to_json,
    raised_to_json,
    result_to_json,
)
from trajgym.server._auth import bearer_of
from trajgym.server._errors import Refused
from trajgym.server._http import json_object, respond
from trajgym.server._json import dumps
from trajgym.server._limits import ClientGone, read_body
from trajgym.server.environments._sessions import PlayedSessions, methods_of
from trajgym.server.environments.openenv import OpenEnvService
from trajgym.trajectory import InvalidInput, StoreError, Task
from trajgym.trajectory._codec import decode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trajgym.envs import EnvSpec
    from trajgym.server._auth import Auth
    from trajgym.server._limits import Limits
    from trajgym.trajectory import Store

    Send = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ["EnvHost", "is_env_path"]

_log = logging.getLogger("trajgym.server")


def is_env_path(path: str) -> bool:
    """Return whether the path of a request belongs to environments."""
    return path == "/envs" or path.startswith("/envs/")


class _Instance:
    """An open environment."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.worker = Worker("trajgym-remote-env")
        self.used_at = time.monotonic()
        self.answers: dict[int, asyncio.Task[bytes]] = {}
        """The last requests by number: a repeated request is not executed again."""


class EnvHost:
    """Serves ``/envs`` as plain ASGI: for trajgym's client, plain requests and OpenEnv's clients.

    Args:
        specs: environments by the name under which they are served.
        auth: checks tokens; clients need the admin token.
        limits: limits; at most ``environments`` instances are open at a time, and one is closed
            after ``environment_seconds`` without a request.
        store: where sessions that are played over HTTP are recorded; None keeps them in memory.
        tasks: tasks by environment, from which OpenEnv's clients choose.
    """

    def __init__(
        self,
        specs: Mapping[str, EnvSpec],
        auth: Auth,
        limits: Limits,
        store: Store | None = None,
        tasks: Mapping[str, Sequence[Task]] | None = None,
    ) -> None:
        for name, spec in specs.items():
            spec.resolve()  # an unknown environment is an error here, not at startup
            if not name or "/" in name:
                raise InvalidInput(
                    f"environment name {name!r}: it is part of a URL; use a name without a slash"
                )
        self._specs = dict(specs)
        self._auth = auth
        self._limits = limits
        self._sessions = PlayedSessions(self._specs, limits, store)
        self._openenv = OpenEnvService(self._specs, self._sessions, auth, limits, tasks or {})
        self._open: dict[str, _Instance] = {}
        self._opening = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the resources that all instances share; see :meth:`Env.open_run`."""
        await open_runs((spec, ()) for spec in self._specs.values())
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def shut(self) -> None:
        """Close every instance, and the resources that they share."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        async with AsyncExitStack() as ends:  # each is carried out, even if one before it fails
            ends.push_async_callback(close_runs, list(self._specs.values()))
            ends.push_async_callback(self._close_all)
            ends.push_async_callback(self._sessions.shut)

    async def _close_all(self) -> None:
        await asyncio.gather(*(self._close(handle) for handle in list(self._open)))

    @property
    def open(self) -> int:
        """Number of open instances."""
        return len(self._open)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """Serve one request, or a WebSocket."""
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        try:
            self._auth.check(bearer_of(scope["headers"]))
            status, body = await self._answer(scope, receive)
            await respond(send, status, body)
        except ClientGone:
            return
        except Refused as error:
            content = {"error": {"message": str(error), "type": error.kind}}
            await respond(send, error.status, dumps(content), error.headers)

    async def _answer(self, scope: dict[str, Any], receive: Any) -> tuple[int, bytes]:
        """Return status and body."""
        _, *parts = [part for part in scope["path"].split("/") if part]
        method = scope["method"]
        if parts[1:2] == ["sessions"]:
            return await self._played(parts, method, scope, receive)
        if parts[1:2] == ["openenv"]:
            self._known(parts[0])
            raw = await read_body(scope, receive, self._limits) if method == "POST" else b""
            return 200, await self._openenv.describe(parts[0], parts[2:], method, raw)
        return 200, await self._for_clients(parts, method, scope, receive)

    async def _socket(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """Serve a WebSocket of OpenEnv's clients; there are no others."""
        _, *parts = [part for part in scope["path"].split("/") if part]
        if parts[1:] != ["openenv", "ws"] or parts[0] not in self._specs:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._openenv.play(parts[0], scope, receive, send)

    async def _played(
        self, parts: list[str], method: str, scope: dict[str, Any], receive: Any
    ) -> tuple[int, bytes]:
        """Answer a request of a session that is played over HTTP."""
        allowed = methods_of(parts[2:])
        if method not in allowed:
            raise Refused(405, f"{method} is not served here", allow=", ".join(allowed))
        self._known(parts[0])
        raw = await read_body(scope, receive, self._limits) if method == "POST" else b""
        body = json_object(raw) if raw.strip() else {}
        try:
            return await self._sessions.answer(parts[0], parts[2:], method, body)
        except InvalidInput as error:
            raise Refused(400, str(error)) from error
        except StoreError as error:
            raise Refused(500, str(error), kind="api_error") from error

    async def _for_clients(
        self, parts: list[str], method: str, scope: dict[str, Any], receive: Any
    ) -> bytes:
        """Answer a request of trajgym's own client, or one about environments."""
        allowed = "GET" if len(parts) < 2 else "POST"
        if method != allowed:
            raise Refused(405, f"{method} is not served here", allow=allowed)
        if not parts:
            return dumps({"environments": sorted(self._specs)})
        spec = self._known(parts[0])
        if len(parts) == 1:
            return dumps(_description(spec.resolve()))
        raw = await read_body(scope, receive, self._limits)
        body = json_object(raw) if raw.strip() else {}
        if parts[1:] == ["open"]:
            gone = asyncio.get_running_loop().create_task(receive())
            try:
                handle, answer = await self._begin(spec, body)
                if gone.done() and handle:  # the client has no handle to close it
                    await self._close(handle)
                    raise ClientGone
            finally:
                gone.cancel()
            return answer
        if parts[1:] == ["script"]:
            return _script(spec.resolve(), body)
        if parts[1:] == ["discard"]:
            return await _discard(spec, body)
        if len(parts) != 3:
            raise Refused(404, f"{scope['path']}: no such endpoint")
        return await self._use(parts[1], parts[2], body)

    def _known(self, name: str) -> EnvSpec:
        if name not in self._specs:
            raise Refused(404, f"no environment {name!r}; there are {sorted(self._specs)}")
        return self._specs[name]

    async def _begin(self, spec: EnvSpec, body: dict[str, Any]) -> tuple[str, bytes]:
        """Open an instance; return its handle, empty if that failed, and the response."""
        if len(self._open) + self._opening >= self._limits.environments:
            raise Refused(503, f"{self._limits.environments} environments are open", retry_after=5)
        task = _task(body)
        self._opening += 1
        instance = None
        try:
            with contained():
                instance = _Instance(spec.make())
            env = instance.env
            env.labels = {str(k): str(v) for k, v in dict(body.get("labels") or {}).items()}
            env.remaining = _remaining(body)
            async with asyncio.timeout(env.reset_seconds):
                value = await self._enter(instance, task, body)
        except BaseException as error:  # the instance is closed, whatever the exception
            if instance is not None:
                await self._end(instance)
            if not isinstance(error, Exception):
                raise
            return "", dumps({"raised": raised_to_json(error)})  # boundary: environment code
        finally:
            self._opening -= 1
        handle = uuid.uuid4().hex
        self._open[handle] = instance
        return handle, dumps({"value": {"id": handle, "value": value}})

    async def _enter(self, instance: _Instance, task: Task, body: dict[str, Any]) -> Any:
        env, call = instance.env, instance.worker.call
        seed, snapshot = body.get("seed"), body.get("snapshot")
        if snapshot is not None:
            await call(env.restore, task, seed, snapshot)
            return {}
        return opening_to_json(await call(env.reset, task, seed))

    async def _use(self, handle: str, method: str, body: dict[str, Any]) -> bytes:
        if method == "close":
            await self._close(handle)
            return dumps({"value": {}})
        instance = self._open.get(handle)
        if instance is None:
            raise Refused(404, "this environment is closed", kind="not_found_error")
        if method not in _METHODS:
            raise Refused(404, f"no method {method!r}; there are {sorted(_METHODS)}")
        number = body.get("number")
        if isinstance(number, bool) or not isinstance(number, int):
            raise Refused(400, "number: expected an integer that counts the requests")
        instance.used_at = time.monotonic()
        found = instance.answers.get(number)
        if found is None:
            found = asyncio.get_running_loop().create_task(_carry_out(instance, method, body))
            instance.answers[number] = found
            for old in [n for n in instance.answers if n <= number - _KEPT]:
                del instance.answers[old]
        try:
            return await asyncio.shield(found)
        except asyncio.CancelledError:
            if found.cancelled():
                raise Refused(409, "the environment was closed during the request") from None
            raise
        finally:
            instance.used_at = time.monotonic()

    async def _close(self, handle: str) -> None:
        instance = self._open.pop(handle, None)
        if instance is not None:
            await self._end(instance)

    async def _end(self, instance: _Instance) -> None:
        for task in instance.answers.values():
            task.cancel()
        try:
            async with asyncio.timeout(instance.env.close_seconds):
                await instance.worker.call(instance.env.close)
        except Exception:  # noqa: BLE001 - boundary: environment code; the instance is gone anyway
            _log.exception("closing a served environment failed")
        finally:
            instance.worker.stop()

    async def _sweep(self) -> None:
        """Close instances that have received no request for ``environment_seconds``."""
        seconds = self._limits.environment_seconds
        while True:
            await asyncio.sleep(min(seconds / 4, 60.0))
            await self._sessions.sweep()
            now = time.monotonic()
            for handle, instance in list(self._open.items()):
                if now - instance.used_at > seconds:
                    _log.warning("environment %s: closed after %g s without use", handle, seconds)
                    await self._close(handle)


_KEPT = 8
"""How many answers of an instance are kept for repeated requests."""


async def _discard(spec: EnvSpec, body: dict[str, Any]) -> bytes:
    snapshots = body.get("snapshots")
    if not isinstance(snapshots, list) or not all(isinstance(one, str) for one in snapshots):
        raise Refused(400, "snapshots: expected a list of strings")
    env = spec.resolve()
    try:
        with contained():
            async with asyncio.timeout(env.close_seconds):
                await env.discard_snapshots(spec.config, snapshots)
    except Exception as error:  # noqa: BLE001 - boundary: environment code
        return dumps({"raised": raised_to_json(error)})
    return dumps({"value": {}})


async def _carry_out(instance: _Instance, method: str, body: dict[str, Any]) -> bytes:
    try:
        with contained():
            instance.env.remaining = _remaining(body)
            return dumps({"value": await _METHODS[method](instance, body)})
    except Exception as error:  # noqa: BLE001 - boundary: environment code
        return dumps({"raised": raised_to_json(error)})


async def _call(instance: _Instance, body: dict[str, Any]) -> Any:
    tool = tools_of(type(instance.env)).get(str(body.get("tool")))
    if tool is None:
        raise Refused(404, f"no tool {body.get('tool')!r}")
    arguments = tool.parse(str(body.get("arguments") or ""))
    given = await instance.worker.call(tool.function, instance.env, **arguments)
    return result_to_json(given, f"tool {tool.name!r}")


async def _respond_to(instance: _Instance, body: dict[str, Any]) -> Any:
    given = await instance.worker.call(instance.env.respond, body.get("message"))
    return result_to_json(given, "respond()")


async def _refuse(instance: _Instance, body: dict[str, Any]) -> Any:
    given = await instance.worker.call(instance.env.on_refusal, str(body.get("error")))
    return result_to_json(given, "on_refusal()")


async def _verify(instance: _Instance, body: dict[str, Any]) -> Any:
    del body
    return outcome_to_json(await instance.worker.call(instance.env.verify))


async def _snapshot(instance: _Instance, body: dict[str, Any]) -> Any:
    del body
    return {"snapshot": await instance.worker.call(instance.env.snapshot)}


_METHODS: Mapping[str, Callable[[_Instance, dict[str, Any]], Awaitable[Any]]] = {
    "call": _call,
    "respond": _respond_to,
    "refuse": _refuse,
    "verify": _verify,
    "snapshot": _snapshot,
}


def _script(cls: type[Env], body: dict[str, Any]) -> bytes:
    sample = body.get("sample")
    task = _task(body)
    try:
        with contained():
            return dumps({"value": cls.script(task, sample if isinstance(sample, int) else 0)})
    except Exception as error:  # noqa: BLE001 - boundary: environment code
        return dumps({"raised": raised_to_json(error)})


def _task(body: dict[str, Any]) -> Task:
    try:
        return decode(Task, dumps(body.get("task")))
    except InvalidInput as error:
        raise Refused(400, str(error)) from error


def _description(cls: type[Env]) -> dict[str, Any]:
    return {
        "tools": [
            {"schema": tool.schema, "concurrent": tool.concurrent}
            for tool in tools_of(cls).values()
        ],
        "budgets": cls.budgets.to_json(),
        "forkable": cls.forkable,
        "refuses": cls.on_refusal is not Env.on_refusal,
        "reset_seconds": cls.reset_seconds,
        "verify_seconds": cls.verify_seconds,
        "close_seconds": cls.close_seconds,
    }


def _remaining(body: dict[str, Any]) -> Remaining:
    given = body.get("remaining")
    if not isinstance(given, list) or len(given) != len(Remaining()):
        return Remaining()
    return Remaining(*(n if isinstance(n, int) else None for n in given))
