"""Seconds per turn of OpenEnv 0.10: an echo environment over its WebSocket on loopback.

64 concurrent clients use one server process, which this script starts and stops. The environment
has an async `step` (no thread per step), and the client is the generic one (no observation model
is built). A rollout is one `reset` and 20 `step` calls, counted as 20 turns; connections are opened
before the measurement and kept open. There is one warm-up round, then the median of three.

Not included: a model and its messages (a step takes the text itself), a record of the rollout, a
store, connecting, starting the server, logging.

Usage: python openenv_echo.py, with an interpreter that has openenv 0.10.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server import Action, Environment, Observation, State, create_app

CONCURRENT = 64
TURNS = 20
ROUNDS = 3


class Say(Action):
    text: str


class Heard(Observation):
    text: str


class Echo(Environment[Say, Heard, State]):
    """An environment that answers with a short text."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, *_: Any, **__: Any) -> Heard:
        return Heard(text="Say something.")

    async def reset_async(self, *_: Any, **__: Any) -> Heard:
        return self.reset()

    def step(self, action: Say, *_: Any, **__: Any) -> Heard:
        return Heard(text=f"you said {action.text}", reward=1.0)

    async def step_async(self, action: Say, *_: Any, **__: Any) -> Heard:
        return self.step(action)

    @property
    def state(self) -> State:
        return State()


def serve() -> None:
    """Serve the environment on a free port, and print the port."""
    app = create_app(Echo, Say, Heard, max_concurrent_envs=CONCURRENT)
    with socket.create_server(("127.0.0.1", 0), backlog=CONCURRENT) as listening:
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="critical", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


async def rollout(client: GenericEnvClient) -> None:
    await client.reset()
    for turn in range(TURNS):
        text = f"line {turn} of a conversation that goes on for a while"
        heard = await client.step({"text": text})
        if heard.observation["text"] != f"you said {text}":
            raise SystemExit(f"turn {turn}: expected its echo, got {heard}")


async def measure(port: int) -> float:
    """Return seconds per turn, the median over rounds."""
    samples = []
    async with AsyncExitStack() as stack:
        clients = [GenericEnvClient(f"http://127.0.0.1:{port}") for _ in range(CONCURRENT)]
        for client in clients:
            await stack.enter_async_context(client)
        for _ in range(ROUNDS + 1):
            started = time.perf_counter()
            await asyncio.gather(*(rollout(client) for client in clients))
            samples.append((time.perf_counter() - started) / (CONCURRENT * TURNS))
    return statistics.median(samples[1:])


def main() -> None:
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            print(asyncio.run(measure(int(server.stdout.readline()))))
        finally:
            server.terminate()


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
