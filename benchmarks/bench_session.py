"""Time per turn of trajgym itself, durable store included, compared with peers in the same run.

The environment is trivial (an async tool that returns a short text) and the policy answers
immediately, so only the SDK is measured: session, validation, ledger, store. Peers run their
nearest equivalent, each in its own interpreter:

- verifiers 0.1.14 `MultiTurnEnv` with an in-process fake client (no durable store),
- verifiers 0.4.0 through its interception server (no durable store),
- OpenEnv 0.10 echo environment over its WebSocket (no record and no durable store).

The docstring of each file in `peers/` describes what it measures. Only the first works like
trajgym; the other two use sockets on every turn, by design. Peers run three rounds.

Usage: python benchmarks/bench_session.py [--verifiers-classic PY] [--verifiers PY] [--openenv PY]
where each PY is the Python interpreter of a virtual environment with that package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, Session, register, tool
from trajgym.trajectory import Message, Store, Task

CONCURRENT = 64
TURNS = 20
ROUNDS = 5
GOAL_US = 50.0


@register("bench/echo")
class Echo(Env):
    """An environment that answers a tool call with a short text."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        return "Say something."

    @tool
    async def echo(self, text: str) -> str:
        """Repeat.

        Args:
            text: what to repeat.
        """
        return f"you said {text}"

    async def verify(self) -> float:
        return 1.0


def message(turn: int) -> Message:
    arguments = json.dumps({"text": f"line {turn} of a conversation that goes on for a while"})
    call = {
        "id": f"c{turn}",
        "type": "function",
        "function": {"name": "echo", "arguments": arguments},
    }
    return {"role": "assistant", "content": "Let me say this.", "tool_calls": [call]}


async def one_session(store: Store | None, spec: EnvSpec, messages: list[Message]) -> None:
    async with Session(spec, Task(id="bench"), store=store) as session:
        for said in messages:
            await session.step(said)


async def measure(sessions: int, rounds: int, *, durable: bool) -> float:
    """Return the seconds per turn of concurrent sessions, the median over rounds."""
    spec, messages = EnvSpec(id="bench/echo"), [message(i) for i in range(TURNS)]
    samples = []
    with tempfile.TemporaryDirectory() as directory:
        store = Store(directory) if durable else None
        for _ in range(rounds + 1):
            started = time.perf_counter()
            await asyncio.gather(*(one_session(store, spec, messages) for _ in range(sessions)))
            samples.append((time.perf_counter() - started) / (sessions * TURNS))
        if store is not None:
            await store.aclose()
    return statistics.median(samples[1:])


def peer(python: str, script: str) -> float:
    """Run a peer's script in its own interpreter, and return the seconds per turn it prints."""
    path = Path(__file__).parent / "peers" / script
    done = subprocess.run(
        [python, str(path)], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{path.name} failed under {python}:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verifiers-classic", help="interpreter with verifiers 0.1.14")
    parser.add_argument("--verifiers", help="interpreter with verifiers 0.4.0")
    parser.add_argument("--openenv", help="interpreter with openenv 0.10")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--sessions", type=int, default=CONCURRENT, help="concurrent sessions")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    size = given.sessions, given.rounds
    ours = asyncio.run(measure(*size, durable=True)) * 1e6
    memory = asyncio.run(measure(*size, durable=False)) * 1e6
    figures = {"trajgym, durable store": ours, "trajgym, in memory": memory}
    for name, python, script in (
        ("verifiers 0.1.14, no store", given.verifiers_classic, "verifiers_classic.py"),
        ("verifiers 0.4.0, no store", given.verifiers, "verifiers_v1.py"),
        ("OpenEnv 0.10, no store", given.openenv, "openenv_echo.py"),
    ):
        if python:
            figures[name] = peer(python, script) * 1e6
        else:
            print(f"left out: {name} (no interpreter was given)")
    print(f"{size[0]} sessions at once, {TURNS} turns each, median of {size[1]} rounds")
    for name, value in figures.items():
        print(f"{name:28} {value:9.1f} us/turn   {value / ours:7.2f} x ours")
    print(f"goal: under {GOAL_US:.0f} us per turn: {'met' if ours < GOAL_US else 'missed'}")
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        given.json.write_text(json.dumps({"when": when, "us_per_turn": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
