"""Sessions that a client plays over HTTP, step by step."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from trajgym.envs import Session
from trajgym.envs._errors import SessionEnded
from trajgym.server._errors import Refused
from trajgym.server._fields import (
    check_session_id,
    finite_field,
    labels_of,
    read_task,
    text_field,
    whole_field,
)
from trajgym.server._json import dumps
from trajgym.server.feeding._log import tree_json
from trajgym.trajectory import InvalidInput, StoreError, Task, TrajgymError
from trajgym.trajectory._codec import to_jsonable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs import EnvSpec
    from trajgym.server._limits import Limits
    from trajgym.trajectory import Store

__all__ = ["PlayedSessions", "methods_of"]

_log = logging.getLogger("trajgym.server")


class _Played:
    """A session and its forks."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.attempts = [session]
        self.lock = asyncio.Lock()
        self.used_at = time.monotonic()


class PlayedSessions:
    """Sessions of served environments: created, stepped, forked and closed by requests.

    Args:
        specs: environments by the name under which they are served.
        limits: at most ``environments`` sessions are open; one is closed after
            ``environment_seconds`` without a request.
        store: where the sessions are recorded; None keeps them in memory until they are closed.
    """

    def __init__(
        self, specs: Mapping[str, EnvSpec], limits: Limits, store: Store | None = None
    ) -> None:
        self._specs = specs
        self._limits = limits
        self._store = store
        self._open: dict[str, _Played] = {}
        self._opening = 0

    async def answer(
        self, env: str, parts: list[str], method: str, body: dict[str, Any]
    ) -> tuple[int, bytes]:
        """Return status and body for a request below ``/envs/NAME/sessions``.

        Args:
            env: name of the environment.
            parts: path after ``sessions``.
            method: of HTTP.
            body: the request's JSON object.

        Raises:
            Refused: the request can't be served.
        """
        if not parts:
            if method == "POST":
                return 201, await self._create(env, body)
            return 200, dumps({"sessions": [_state(p, 0) for p in self._open.values()]})
        played = self._open.get(parts[0])
        if played is None:
            raise Refused(404, f"no open session {parts[0]!r}", kind="not_found_error")
        played.used_at = time.monotonic()
        action = (method, parts[1] if len(parts) == 2 else "/".join(parts[1:]))
        if action == ("GET", ""):
            return 200, dumps(_state(played, 0))
        if action == ("GET", "tree"):
            return 200, b"".join(tree_json(played.session.tree))
        if action == ("POST", "close"):
            return 200, await self._close(parts[0])
        if action not in _ACTIONS:
            raise Refused(404, f"no endpoint {method} …/{'/'.join(parts)}", kind="not_found_error")
        async with played.lock:
            try:
                return await _ACTIONS[action](self, played, body)
            except SessionEnded as error:
                raise Refused(409, str(error)) from error
            finally:
                played.used_at = time.monotonic()

    def find(self, name: str) -> Session | None:
        """Return the first attempt of an open session; None if there is none of that id."""
        played = self._open.get(name)
        return None if played is None else played.session

    async def sweep(self) -> None:
        """Close sessions that have received no request for ``environment_seconds``."""
        now = time.monotonic()
        for name, played in list(self._open.items()):
            if now - played.used_at > self._limits.environment_seconds and not played.lock.locked():
                _log.warning("session %s: closed after a time without use", name)
                try:
                    await self._close(name)
                except Exception:  # noqa: BLE001 - boundary: the store; others are closed all the same
                    _log.exception("session %s: closing it failed", name)

    async def shut(self) -> None:
        """Close every session."""
        closing = [self._close(name) for name in list(self._open)]
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            if failure is not None and not isinstance(failure, bytes):
                raise failure

    async def _create(self, env: str, body: dict[str, Any]) -> bytes:
        if len(self._open) + self._opening >= self._limits.environments:
            raise Refused(503, f"{self._limits.environments} sessions are open", retry_after=5)
        given = body.get("task")
        task = read_task({"id": given} if isinstance(given, str) else given)
        given_id = text_field(body, "id")
        name = check_session_id(uuid.uuid4().hex if given_id is None else given_id)
        if name in self._open:
            raise Refused(409, f"session {name!r} is open already")
        session = Session(
            self._specs[env],
            task,
            store=self._store,
            session_id=name,
            seed=whole_field(body, "seed"),
            labels=labels_of(body.get("labels")),
        )
        self._opening += 1
        try:
            await self._enter(session, task)
        finally:
            self._opening -= 1
        played = self._open[name] = _Played(session)
        return dumps(_state(played, 0) | {"tools": session.tools})

    async def _enter(self, session: Session, task: Task) -> None:
        try:
            if self._store is not None:
                await self._store.put_task(task)
            await session.__aenter__()
        except InvalidInput as error:
            raise Refused(409, str(error)) from error
        except StoreError:
            raise
        except Exception as error:  # boundary: environment code
            raise Refused(502, f"the environment failed: {error!r}"[:500]) from error

    async def _close(self, name: str) -> bytes:
        played = self._open.pop(name, None)
        if played is None:
            raise Refused(404, f"no open session {name!r}", kind="not_found_error")
        await played.session.__aexit__(None, None, None)
        return dumps(_state(played, 0))

    async def _step(self, played: _Played, body: dict[str, Any]) -> tuple[int, bytes]:
        """Execute an assistant message, a tool call, or a text."""
        attempt = _attempt_of(played, body)
        session = played.attempts[attempt]
        turn = whole_field(body, "turn")
        if turn is not None and turn != len(session.turns):
            raise Refused(
                409, f"turn {turn}: the attempt has {len(session.turns)} turns; read its state"
            )
        found = await session.step(_message_of(body))
        if session.spawned:
            await session.fail("caller", "this tool spawns sub-agents, which are not served")
        shown = {"observation": found.observation, "reward": found.reward}
        return 200, dumps(_state(played, attempt) | shown)

    async def _fork(self, played: _Played, body: dict[str, Any]) -> tuple[int, bytes]:
        session = played.attempts[_attempt_of(played, body)]
        try:
            rival = await session.fork(whole_field(body, "turn"))
        except InvalidInput as error:
            raise Refused(400, str(error)) from error
        except TrajgymError as error:  # it can't be forked, or replaying it diverged
            raise Refused(409, str(error)) from error
        played.attempts.append(rival)
        return 201, dumps(_state(played, len(played.attempts) - 1))

    async def _rewards(self, played: _Played, body: dict[str, Any]) -> tuple[int, bytes]:
        """Set rewards of turns. Idempotent."""
        given, turns = body.get("rewards"), played.session.tree.turns
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise Refused(400, 'rewards: expected a list of {"turn", "reward"}')
        placed = [(whole_field(one, "turn"), finite_field(one, "reward")) for one in given]
        for index, reward in placed:
            if index is None or index >= len(turns):
                raise Refused(404, f"session {played.session.id}: no turn {index!r}")
            turns[index].reward = reward
            if self._store is not None:
                await self._store.amend_turn(played.session.id, index, reward=reward)
        return 200, dumps({"turns": [index for index, _ in placed]})


_ACTIONS = {
    ("POST", "step"): PlayedSessions._step,
    ("POST", "fork"): PlayedSessions._fork,
    ("POST", "rewards"): PlayedSessions._rewards,
}


def methods_of(parts: list[str]) -> tuple[str, ...]:
    """Return the methods of an endpoint below ``/envs/NAME/sessions``."""
    if not parts:
        return "GET", "POST"
    return ("GET",) if len(parts) == 1 or parts[1:] == ["tree"] else ("POST",)


def _attempt_of(played: _Played, body: dict[str, Any]) -> int:
    index = whole_field(body, "attempt") or 0
    if index >= len(played.attempts):
        raise Refused(404, f"there are {len(played.attempts)} attempts, and no attempt {index}")
    return index


def _message_of(body: dict[str, Any]) -> Any:
    """Return the assistant message that a step's body stands for."""
    given = [name for name in ("message", "tool", "text") if body.get(name) is not None]
    if len(given) != 1:
        raise Refused(400, "a step has one of message (an assistant message), tool, or text")
    if given == ["message"]:
        return body["message"]
    if given == ["text"]:
        return text_field(body, "text")
    arguments = body.get("arguments") or {}
    call = {
        "id": f"call_{uuid.uuid4().hex[:16]}",
        "type": "function",
        "function": {
            "name": text_field(body, "tool"),
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        },
    }
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _state(played: _Played, attempt: int) -> dict[str, Any]:
    session = played.attempts[attempt]
    outcome = session.outcome
    return {
        "id": session.id,
        "attempt": attempt,
        "status": str(session.status),
        "cause": session.attempt.cause,
        "done": session.done,
        "turns": len(session.turns),
        "messages": session.messages,
        "outcome": None if outcome is None else to_jsonable(outcome),
    }
