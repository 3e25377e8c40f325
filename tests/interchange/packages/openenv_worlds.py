"""Environments in OpenEnv's own classes, and a server of OpenEnv's own that runs them."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

BUSY = threading.Event()
"""What the guess 11 waits for."""


class GuessAction(Action):
    """Guess the number."""

    guess: int = Field(description="your guess", ge=0)


class GuessObservation(Observation):
    hint: str


class Guess(Environment):  # type: ignore[misc, type-arg, unused-ignore]
    """Guess a number that the seed decides."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, high: int = 9, **_: Any
    ) -> GuessObservation:
        self._state = State(episode_id=episode_id)
        self._number = random.Random(seed).randint(0, high)
        return GuessObservation(hint=f"a number from 0 to {high}")

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: Any) -> Observation:
        self._state.step_count += 1
        if action.guess == 11:
            BUSY.wait(120)
        if action.guess == 13:
            raise RuntimeError("out of luck")
        found = action.guess == self._number
        hint = "found" if found else "higher" if action.guess < self._number else "lower"
        return GuessObservation(hint=hint, done=found, reward=1.0 if found else -0.125)

    @property
    def state(self) -> State:
        return self._state


class Abacus(MCPEnvironment):
    """Tools over MCP; a reward for each call."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp: Any = FastMCP("abacus")

        @mcp.tool()  # type: ignore[untyped-decorator, unused-ignore]
        def add(x: int, y: int) -> int:
            """Add two numbers."""
            return x + y

        @mcp.tool()  # type: ignore[untyped-decorator, unused-ignore]
        def crash() -> str:
            """Fail."""
            raise ValueError("the abacus fell")

        super().__init__(mcp)
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Observation:
        self._state = State(episode_id=episode_id)
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise ValueError(f"no action {action}")

    async def step_async(self, action: Action, timeout_s: float | None = None, **_: Any) -> Any:
        seen = await super().step_async(action, timeout_s)
        if isinstance(seen, CallToolObservation):
            self._state.step_count += 1
            seen.reward = 0.5 if seen.error is None else -0.5
        return seen

    @property
    def state(self) -> State:
        return self._state


APPS = {
    "guess": lambda: create_fastapi_app(Guess, GuessAction, GuessObservation),
    "abacus": lambda: create_fastapi_app(
        Abacus, CallToolAction, CallToolObservation, max_concurrent_envs=4
    ),
}


@contextmanager
def served(name: str) -> Iterator[str]:
    """Run OpenEnv's server in a thread and yield its URL."""
    config = uvicorn.Config(APPS[name](), log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()
