"""Time of a turn whose environment is served over HTTP, compared with the same one in-process.

The server is a separate process on loopback; the session, its record and the durable store are
local in both cases. Rounds alternate. The goal is less than 0.4 ms more than the in-process turn.

Usage: python benchmarks/bench_remote.py [--turns N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from trajgym.envs import Budgets, Env, EnvSpec, Session, tool
from trajgym.trajectory import Store, Task

GOAL_MS = 0.4


class Echo(Env):
    """An environment with a tool that returns its argument."""

    budgets = Budgets(turns=None)

    def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        return "Say something."

    @tool
    async def echo(self, text: str) -> str:
        """Return a text.

        Args:
            text: what to return.
        """
        return text

    def verify(self) -> float:
        return 1.0


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "c0",
            "type": "function",
            "function": {"name": "echo", "arguments": json.dumps({"text": "word " * 20})},
        }
    ],
}


async def turns(spec: EnvSpec, store: Store, count: int) -> list[float]:
    """Return the seconds of every turn of a session."""
    times = []
    async with Session(spec, Task(id="t"), store=store) as session:
        for _ in range(count):
            begun = time.perf_counter()
            await session.step(dict(CALL))
            times.append(time.perf_counter() - begun)
    return times


async def requests(url: str, count: int) -> list[float]:
    """Return the seconds of requests without an effect, the lower bound of a remote turn."""
    times = []
    async with aiohttp.ClientSession() as client:
        for _ in range(count):
            begun = time.perf_counter()
            async with client.get(url) as got:
                await got.read()
            times.append(time.perf_counter() - begun)
    return times


async def measure(local: EnvSpec, remote: EnvSpec, count: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"local": [], "remote": [], "request": []}
    with tempfile.TemporaryDirectory() as directory, Store(directory) as store:
        for spec in (local, remote):
            await turns(spec, store, 20)
        for _ in range(rounds):
            found["local"] += await turns(local, store, count)
            found["remote"] += await turns(remote, store, count)
            found["request"] += await requests(remote.id.rpartition("/")[0], count)
    return {name: 1000 * median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    name = "benchmarks.bench_remote:Echo"
    command = [sys.executable, "-m", "trajgym.cli", "serve", "--env", name, "--port", str(port)]
    root = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(root))
    server = subprocess.Popen(command, cwd=root)
    try:
        remote = EnvSpec(id=f"http://127.0.0.1:{port}/envs/Echo")
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        found = asyncio.run(measure(EnvSpec(id=name), remote, options.turns, options.rounds))
    finally:
        server.terminate()
        server.wait()
    added = found["remote"] - found["local"]
    print(
        f"turn in-process {found['local']:.3f} ms, remote {found['remote']:.3f} ms: "
        f"{added:.3f} ms more, {added / found['request']:.2f} x an empty request of the same "
        f"client and server ({found['request']:.3f} ms) "
        f"(goal {GOAL_MS} ms, load {os.getloadavg()[0]:.1f})"
    )


if __name__ == "__main__":
    main()
