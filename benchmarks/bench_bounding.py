"""Time that a huge tool result blocks the event loop, for hostile texts of every kind.

A plain tool returns the text from its thread. The CPU time of the event loop's thread is measured
for the whole step, in which the session truncates the text and records the turn. The lower bound in
the same run is a step whose result is ASCII text of the length to which others are truncated.

Usage: python benchmarks/bench_bounding.py [--sizes 10000000 100000000] [--rounds 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from trajgym.envs import Budgets, Env, EnvSpec, Session, register, tool
from trajgym.trajectory import Message, Store, Task

UNITS = {
    "ASCII": "x",
    "NUL": "\0",
    "Latin": "é",
    "combining": "e\u0301",
    "astral": "\U0001f600",
    "lone surrogates": "\udce9",
    "every second a surrogate": "a\udce9",
    "pairs of surrogates": "\ud83d\ude00",
}
GOAL_MS = 5.0
KEPT = 100_000


@register("bench/flood")
class Flood(Env):
    """An environment with a tool that returns the benchmark's text."""

    budgets: ClassVar[Budgets] = Budgets(turns=None, seconds=None, observation_bytes=KEPT)
    text: ClassVar[str] = ""

    def reset(self, task: Task, seed: int | None) -> str:  # noqa: ARG002
        return "go"

    @tool
    def flood(self) -> str:
        """Flood."""
        return self.text

    def verify(self) -> float:
        return 1.0


CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "flood", "arguments": "{}"}}
    ],
}


async def measure(text: str, rounds: int) -> float:
    """Return the minimum milliseconds of the loop's thread for a step that returns the text."""
    Flood.text = text
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Store(folder) as store,
            Session(EnvSpec(id="bench/flood"), Task(id="bench"), store=store) as session,
        ):
            for _ in range(rounds):
                began = time.thread_time()
                await session.step(CALL)
                taken.append(time.thread_time() - began)
    return min(taken) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000_000, 100_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    bound = asyncio.run(measure("x" * KEPT, given.rounds))
    print(f"{KEPT:,} characters, not truncated: {bound:.2f} ms on the loop")
    figures: dict[str, dict[str, float]] = {}
    for size in given.sizes:
        for name, unit in UNITS.items():
            taken = asyncio.run(measure(unit * (size // len(unit)), given.rounds))
            figures.setdefault(f"{size}", {})[name] = round(taken, 3)
            print(f"{size:>12,} {name:26} {taken:6.2f} ms   {taken / bound:6.1f} x the bound")
    worst = max(max(found.values()) for found in figures.values())
    print(f"goal: at most {GOAL_MS:g} ms: {'met' if worst <= GOAL_MS else 'missed'}")
    if given.json:
        when = datetime.now(UTC).date().isoformat()
        found = {"date": when, "bound_ms": round(bound, 3), "ms_on_the_loop": figures}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
