"""The fleet of a soak, as a program that prints a line for each event and can be killed.

Lines: ``turn SESSION INDEX``, ``ended SESSION STATUS``, at the end ``complete JSON``.

The tasks end early when the file ``stop`` is beside the run directory.

Usage: python -m benchmarks.soak._collect OUT PORT PLAN
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.soak._plan import Plan
from benchmarks.soak._world import make_tasks
from trajgym.envs import Budgets, EnvSpec
from trajgym.rollout import Retry, TokenPolicy
from trajgym.rollout.engines import VLLMEngine
from trajgym.rollout.fleet import FleetLimits, collect_in_processes
from trajgym.rollout.rendering import ByteRenderer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.rollout import Policy, Progress
    from trajgym.rollout.fleet import Fleet
    from trajgym.trajectory import Task


def make_policy(port: int) -> Policy:
    """Make the policy of a process: exact turns over HTTP, with little patience."""
    engine = VLLMEngine(
        f"http://127.0.0.1:{port}",
        "soak",
        stream=True,
        timeout=60.0,
        retry=Retry(tries=4, total_seconds=60.0, first_wait=0.2, longest_wait=2.0),
    )
    return TokenPolicy(engine, ByteRenderer(), max_tokens=2048)


def note(event: Progress) -> None:
    if event.turn is not None:
        line = f"turn {event.session} {event.turn.index}\n"
    elif event.kind == "ended":
        line = f"ended {event.session} {event.status}\n"
    else:
        return
    os.write(1, line.encode())  # at once: this process is killed


def some_tasks(plan: Plan, stop: Path) -> Iterator[Task]:
    """Yield the tasks until a file is there."""
    for task in make_tasks(plan.seed, plan.tasks):
        if stop.exists():
            return
        yield task


async def collect(out: str, port: int, plan: Plan) -> None:
    fleets: list[Fleet] = []
    config = {"sandbox": plan.sandbox, "seed": plan.seed, "raises": plan.raises}
    report = await collect_in_processes(
        EnvSpec(id="benchmarks.soak._world:FaultyCode", config=config),
        some_tasks(plan, Path(out).with_name("stop")),
        partial(make_policy, port),
        out,
        processes=plan.processes,
        on_progress=note,
        on_start=fleets.append,
        limits=FleetLimits(answer=plan.answer),
        samples=plan.samples,
        concurrency=plan.concurrency,
        retries=plan.retries,
        max_tries=1 + plan.retries,
        budgets=Budgets(turns=8, seconds=600.0),
        seed=plan.seed,
    )
    found = {"deaths": fleets[0].deaths, "statuses": report.statuses, "groups": report.groups}
    os.write(1, f"complete {json.dumps(found)}\n".encode())


if __name__ == "__main__":
    asyncio.run(collect(sys.argv[1], int(sys.argv[2]), Plan.of_json(sys.argv[3])))
