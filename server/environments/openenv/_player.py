"""One client of an OpenEnv server: its messages are played as steps of a session."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from trajgym.server._errors import Refused
from trajgym.server._fields import check_session_id, read_task, text_field
from trajgym.server._json import dumps, loads
from trajgym.server.environments.openenv._answers import (
    Json,
    body_of,
    called,
    failure,
    listed,
    observed,
    problem,
    rpc,
    shown,
)
from trajgym.trajectory import InvalidInput, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trajgym.envs import Session
    from trajgym.server.environments.openenv._service import OpenEnvService
    from trajgym.trajectory import Message

__all__ = ["Player"]

_RESET_FIELDS = frozenset({"seed", "episode_id", "task", "task_id"})


class Player:
    """A client's episodes, one after the other.

    Args:
        service: the endpoints.
        env: name of the environment.
    """

    def __init__(self, service: OpenEnvService, env: str) -> None:
        self._service = service
        self._env = env
        self._session: str | None = None
        self._lock = asyncio.Lock()
        self.used_at = time.monotonic()
        self.attached = False
        """Whether a WebSocket is connected."""

    async def answer(self, raw: str | bytes) -> Json | None:
        """Return the answer to a message of the WebSocket; None for ``close``."""
        self.used_at = time.monotonic()
        try:
            message = loads(raw)
        except (ValueError, RecursionError) as error:
            return failure("INVALID_JSON", f"Invalid JSON: {error}")
        kind = str(message.get("type")) if isinstance(message, dict) else None
        if kind == "close":
            return None
        known: dict[Any, Callable[[Json], Awaitable[Json]]] = {
            "reset": self._reset,
            "step": self._step,
            "state": self._state,
            "mcp": self._mcp,
        }
        data = message.get("data", {}) if isinstance(message, dict) else {}
        if kind not in known or not isinstance(data, dict):
            code = "VALIDATION_ERROR" if kind in known else "UNKNOWN_TYPE"
            return failure(code, f"expected a message of type {', '.join(known)} or close")
        try:
            async with self._lock:
                return await known[kind](data)
        except Refused as error:
            code = _CODES.get(error.status, "EXECUTION_ERROR")
            problems = [problem(str(error))] if error.status == 400 else None
            return failure(code, str(error), problems)
        except InvalidInput as error:
            return failure("VALIDATION_ERROR", str(error), [problem(str(error))])
        except StoreError as error:
            return failure("SESSION_ERROR", str(error))

    async def leave(self) -> None:
        """Close the open session, if there is one."""
        name, self._session = self._session, None
        if name is not None and self._service.sessions.find(name) is not None:
            await self._service.sessions.answer(self._env, [name, "close"], "POST", {})

    async def _reset(self, data: Json) -> Json:
        if unknown := sorted(set(data) - _RESET_FIELDS):
            raise Refused(
                400, f"reset: unknown fields {unknown}; there are {sorted(_RESET_FIELDS)}"
            )
        seed = data.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise Refused(400, "seed: expected an integer that is not negative")
        name = text_field(data, "episode_id") or uuid.uuid4().hex
        task = self._service.choose(self._env, data.get("task", data.get("task_id")), seed)
        check_session_id(name)
        read_task({"id": task} if isinstance(task, str) else task)
        await self.leave()  # not earlier: a malformed message leaves the episode open
        body = {"task": task, "id": name, "seed": seed}
        _, answer = await self._service.sessions.answer(self._env, [], "POST", body)
        self._session = loads(answer)["id"]
        session = self._open()
        return self._observation(session, session.messages, None)

    async def _step(self, action: Json) -> Json:
        if action.get("type") == "list_tools":
            return observed({"tools": self._service.tools(self._env)}, None, done=False)
        session = self._open()
        before = len(session.turns)
        body = body_of(action)
        _, answer = await self._service.sessions.answer(
            self._env, [session.id, "step"], "POST", body
        )
        told = loads(answer)
        fields = None
        if (name := body.get("tool")) is not None:
            tools = {one["name"] for one in self._service.tools(self._env)}
            fields = called(session, before, name, tools)
        return self._observation(session, told["observation"], told["reward"], fields)

    async def _state(self, data: Json) -> Json:
        del data
        session = None if self._session is None else self._service.sessions.find(self._session)
        if session is None:
            return {"type": "state", "data": {"episode_id": None, "step_count": 0}}
        return {
            "type": "state",
            "data": {
                "episode_id": session.id,
                "step_count": len(session.turns),
                "task": session.record.task,
                "status": str(session.status),
            },
        }

    async def _mcp(self, data: Json) -> Json:
        return {"type": "mcp", "data": await rpc(dumps(data), self._method)}

    async def call(self, method: str, params: Json) -> Json:
        """Return the result of a method of MCP that arrived over HTTP.

        Raises:
            Refused: the tool failed, no episode is open, or there is no such method.
        """
        self.used_at = time.monotonic()
        async with self._lock:
            return await self._method(method, params)

    async def _method(self, method: str, params: Json) -> Json:
        if method == "tools/list":
            return listed(self._service.tools(self._env))
        if method != "tools/call":
            raise Refused(404, f"no method {method}; there are tools/list and tools/call")
        call = {
            "type": "call_tool",
            "tool_name": params.get("name"),
            "arguments": params.get("arguments") or {},
        }
        found = (await self._step(call))["data"]["observation"]
        if found["error"] is not None:
            raise Refused(400, found["error"]["message"])
        result: Json = found["result"]
        return result

    def _open(self) -> Session:
        found = None if self._session is None else self._service.sessions.find(self._session)
        if found is None:
            raise Refused(409, "no episode is open: send reset first")
        return found

    def _observation(
        self,
        session: Session,
        messages: Sequence[Message],
        reward: float | None,
        more: Json | None = None,
    ) -> Json:
        """Return the answer after a turn, or the error if the environment failed.

        The outcome's score is part of the last reward, as in :class:`trajgym.envs.gym.TextEnv`.
        """
        if session.status.kind == "failed":
            raise Refused(502, f"{session.status}: {session.attempt.cause}")
        outcome = session.outcome
        if session.done and outcome is not None:
            reward = (reward or 0.0) + outcome.score
        return observed({**shown(session, messages), **(more or {})}, reward, done=session.done)


_CODES = {400: "VALIDATION_ERROR", 503: "CAPACITY_REACHED"}
