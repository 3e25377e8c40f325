"""Sessions per second of a fleet of processes, compared with one process in the same run.

Each session is ten turns through the token path with the fake engine, or scripted text turns
(``--policy scripted``), of an environment that costs nothing; so the SDK is measured, with its
durable store. ``one`` is ``collect`` in this process; the others are ``collect_in_processes``. A
rate is that of the sessions that ended between the first and the last tenth; ``first`` is the
time until the first session ended, which for a fleet is the start of processes.

With ``--compare``, it measures the CPU time of a turn in one process instead, with both policies in
turns: the least of the rounds, because other work on the machine only adds to it.

The bound of N processes is N times one process, or the number of CPUs times one if that is less.

Usage: python -m benchmarks.bench_fleet [--sessions 2000] [--processes 1 2 4] [--policy fake]
           [--compare] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, ToolResult, tool
from trajgym.rollout import FakeEngine, ScriptedPolicy, TokenPolicy, call, collect
from trajgym.rollout.fleet import collect_in_processes
from trajgym.trajectory import Run, Task

if TYPE_CHECKING:
    from trajgym.rollout import Policy, Progress

TURNS, SAMPLES, CONCURRENCY = 10, 4, 32
SAID = "Let me say this, which is about as long as a thought before a call."


class Echo(Env):
    """Answers a tool call with a short text."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, seconds_per_turn=None)

    async def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        self.n = 0
        return "Say something."

    @tool
    async def echo(self, text: str) -> ToolResult:
        """Repeat.

        Args:
            text: what to repeat.
        """
        self.n += 1
        return ToolResult(content=f"you said {text}", done=self.n == TURNS)

    async def verify(self) -> float:
        return 1.0


CALL = call("echo", text="line 1")


def policy(kind: str) -> Policy:
    """Make the policy of a process: the same calls as exact turns of a fake engine, or as texts."""
    if kind == "scripted":
        return ScriptedPolicy(lambda _: CALL)
    engine = FakeEngine([CALL] * TURNS)
    return TokenPolicy(engine, engine.renderer)


async def measure(kind: str, processes: int, sessions: int) -> dict[str, float]:
    """Collect, and return rate and start-up; ``processes`` 0 is no fleet."""
    spec = EnvSpec(id=f"{Echo.__module__}:Echo")
    if Echo.__module__ == "__main__":
        spec = EnvSpec(id="benchmarks.bench_fleet:Echo")
    tasks = [Task(id=f"t{i}") for i in range(max(1, sessions // SAMPLES))]
    ends: list[float] = []

    def note(event: Progress) -> None:
        if event.kind == "ended":
            ends.append(time.perf_counter())

    options: dict[str, Any] = {
        "samples": SAMPLES,
        "concurrency": CONCURRENCY,
        "on_progress": note,
    }
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        if processes:
            make = partial(policy, kind)
            await collect_in_processes(spec, tasks, make, out, processes=processes, **options)
        else:
            await collect(spec, tasks, policy(kind), out, **options)
        whole = time.perf_counter() - begun
        with Run(out) as run:
            scored = sum(s.attempts[0].status.scored for s in run.summaries())
    assert scored == len(ends) == len(tasks) * SAMPLES
    low, high = len(ends) // 10, len(ends) * 9 // 10
    return {
        "per_second": (high - low) / (ends[high] - ends[low]),
        "first": ends[0] - begun,
        "seconds": whole,
    }


async def compare(sessions: int, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds of a turn by policy, those of the fastest round."""
    found: dict[str, list[float]] = {"fake": [], "scripted": []}
    for _ in range(rounds):
        for kind, samples in found.items():
            begun = time.process_time()
            await measure(kind, 0, sessions)
            samples.append((time.process_time() - begun) / (sessions * TURNS) * 1e3)
    return {kind: min(samples) for kind, samples in found.items()}


def machine() -> dict[str, Any]:
    """Describe this machine."""
    cpus = len(os.sched_getaffinity(0))
    return {"cpus": cpus, "python": platform.python_version(), "system": sys.platform}


def write(path: Path | None, found: dict[str, Any]) -> None:
    """Write figures to a file, with the time and the machine."""
    if path is not None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        whole = {"when": when, "machine": machine(), **found}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--policy", choices=["fake", "scripted"], default="fake")
    parser.add_argument("--compare", action="store_true", help="CPU time of both policies")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    if given.compare:
        found = asyncio.run(compare(given.sessions, given.rounds))
        ratio = found["fake"] / found["scripted"]
        print(f"CPU milliseconds of a turn: {found}; fake {ratio:.2f} x scripted")
        write(given.json, {"sessions": given.sessions, "turns": TURNS, "cpu_ms_per_turn": found})
        return
    cpus = len(os.sched_getaffinity(0))
    rounds: dict[int, list[dict[str, float]]] = {n: [] for n in (0, *given.processes)}
    for _ in range(given.rounds):
        for processes, measured in rounds.items():
            measured.append(asyncio.run(measure(given.policy, processes, given.sessions)))
    figures = {
        n: {name: statistics.median(one[name] for one in measured) for name in measured[0]}
        for n, measured in rounds.items()
    }
    base = figures[0]["per_second"]
    print(f"{given.sessions} sessions of {TURNS} {given.policy} turns, {cpus} CPUs")
    for n, one in figures.items():
        bound = base * min(max(n, 1), cpus)
        name = f"{n} processes" if n else "one, no fleet"
        print(
            f"{name:14} {one['per_second']:8.1f} sessions/s {one['per_second'] / base:6.2f} x one"
            f" {one['per_second'] / bound:6.2f} of the bound   first after {one['first']:.2f} s"
        )
    result = {
        "policy": given.policy,
        "sessions": given.sessions,
        "turns": TURNS,
        "processes": {str(n): one for n, one in figures.items()},
    }
    write(given.json, result)


if __name__ == "__main__":
    main()
