"""Tree rollouts of the SWE environment in sandboxes, compared with independent sampling.

Each expansion grows trees through the runner, in Docker and embedded sandboxes, with a scripted
policy; independent sampling then gets as many turns, in attempts that begin at the root. Rivals
are forked from a snapshot of every turn (``restored``) or by replaying turns (``replayed``).
Reported are leaves per second, and seconds per leaf for which an agent's sandbox was open (its
start included), next to the lower bound of the same run: as many bare sandboxes as the runner has
places, each started, given the commands and removed, without environment, session and store.
``nested`` are forks of forks: rivals of rivals.

Leaves are not graded, because grading costs a leaf the same either way; ``--graded`` grades them.
``--policy-seconds`` is how long the policy takes per turn: with 0, only sandboxes count.

Usage: python -m benchmarks.bench_trees [--kinds embedded docker] [--expansions Tree-GRPO ...]
           [--ways restored replayed] [--trees 4] [--rounds 3] [--policy-seconds 0 0.5] [--graded]
           [--json FILE]
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trajgym.envs import EnvSpec
from trajgym.envs.sandbox import SandboxUnavailable, close_shared_providers, shared_provider
from trajgym.envs.swe import SweEnv, load_tasks, prepare
from trajgym.rollout import (
    EntropyExpansion,
    Runner,
    SurprisalExpansion,
    TokenPolicy,
    TreeExpansion,
    call,
)
from trajgym.trajectory import Outcome, Store

if TYPE_CHECKING:
    from trajgym.envs import Reply
    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.rollout import Expansion, PolicyRequest
    from trajgym.rollout.engines import FakeCall
    from trajgym.trajectory import SessionTree, Task

CONCURRENCY = 4
COMMANDS = (
    "git log --oneline | head -3; ls",
    "head -50 spans/_set.py",
    "echo '# {number}' >> spans/_set.py; git diff --stat",
    "python3 -m pytest -q 2>&1 | tail -3",
    "echo {number} > note; git status --short; git diff",
)
"""Of an attempt, one per turn; the last turn submits."""
TURNS = len(COMMANDS) + 1
EXPANSIONS: dict[str, Expansion] = {
    "Tree-GRPO": TreeExpansion(nodes=2, rounds=2),
    "EPTree": SurprisalExpansion(nodes=2, rounds=2, branches=1),
    "ARPO": EntropyExpansion(branches=4, base=1.0),
}
WAYS = {"restored": 1, "replayed": 0}
"""How rivals are forked, with ``snapshot_every``."""


class TimedSwe(SweEnv):
    """The SWE environment; counts the seconds for which agents' sandboxes are open."""

    spent: ClassVar[list[float]] = []
    graded: ClassVar[bool] = False
    _begun: float | None = None

    async def reset(self, task: Task, seed: int | None) -> str:
        self._begun = time.perf_counter()
        return await super().reset(task, seed)

    async def restore(self, task: Task, seed: int | None, snapshot: str) -> None:
        self._begun = time.perf_counter()
        await super().restore(task, seed, snapshot)

    async def verify(self) -> Outcome:
        return await super().verify() if self.graded else Outcome(score=1.0, passed=True)

    async def close(self) -> None:
        await super().close()
        if self._begun is not None:
            self.spent.append(time.perf_counter() - self._begun)
            self._begun = None


class TimedPolicy(TokenPolicy):
    """A policy whose turns take so many seconds."""

    seconds = 0.0

    async def sample(self, request: PolicyRequest) -> Reply:
        await asyncio.sleep(self.seconds)
        return await super().sample(request)


def script(asked: FakeCall) -> Any:
    """Return the next of the commands; their edits depend on the seed, so that rivals differ."""
    if asked.turn >= len(COMMANDS):
        return call("submit")
    return call("bash", command=COMMANDS[asked.turn].format(number=(asked.seed or 0) % 10_000))


def environment(kind: str) -> EnvSpec:
    return EnvSpec(id="benchmarks.bench_trees:TimedSwe", config={"sandbox": kind, "twins": False})


async def collect(
    kind: str, task: Task, samples: int, seconds: float, **settings: Any
) -> tuple[list[SessionTree], float, float]:
    """Return the sessions, seconds, and seconds of sandboxes."""
    spec = environment(kind)
    counted: type[TimedSwe] = spec.resolve()  # type: ignore[assignment]
    policy = TimedPolicy.fake(script)
    policy.seconds = seconds
    with tempfile.TemporaryDirectory() as out:
        async with Store(out) as store:
            options = {"samples": samples, "concurrency": CONCURRENCY, "store": store, **settings}
            async with Runner(spec, [task], policy, **options) as runner:
                counted.spent.clear()
                begun = time.perf_counter()
                trees = [tree async for group in runner for tree in group.sessions]
                took = time.perf_counter() - begun
    return trees, took, sum(counted.spent)


def figures(trees: list[SessionTree], took: float, open_seconds: float) -> dict[str, float]:
    attempts = [attempt for tree in trees for attempt in tree.attempts]
    leaves = sum(attempt.status.scored for attempt in attempts)
    if leaves < len(attempts):
        bad = next(attempt for attempt in attempts if not attempt.status.scored)
        raise SystemExit(f"an attempt ended {bad.status}: {bad.cause}")
    rivals = [(tree, one.forked_at) for tree in trees for one in tree.attempts if one.index]
    nested = sum(at is not None and tree.turns[at].attempt > 0 for tree, at in rivals)
    return {
        "leaves": leaves,
        "turns": sum(len(tree.turns) for tree in trees),
        "forks": len(rivals),
        "forks_of_forks": nested,
        "leaves_per_second": leaves / took,
        "sandbox_seconds_per_leaf": open_seconds / leaves,
    }


async def bare(kind: str, task: Task) -> tuple[float, float]:
    """Return the seconds of a start with its removal, and of an attempt's commands.

    As many attempts as the runner has places run concurrently, on sandboxes alone.
    """
    provider: SandboxProvider = await shared_provider(kind)  # type: ignore[arg-type]
    spec = await prepare(task, provider)

    async def attempt() -> tuple[float, float]:
        begun = time.perf_counter()
        box = await provider.start(spec)
        ready = time.perf_counter()
        for command in COMMANDS:
            await box.run(["/bin/bash", "-c", command.format(number=1)], cwd="/testbed")
        done = time.perf_counter()
        await box.close()
        return time.perf_counter() - done + ready - begun, done - ready

    found = await asyncio.gather(*(attempt() for _ in range(CONCURRENCY)))
    starts, commands = zip(*found, strict=True)
    return statistics.mean(starts), statistics.mean(commands)


async def one_round(
    kind: str, given: argparse.Namespace, found: dict[str, dict[str, list[dict[str, float]]]]
) -> None:
    """Measure each expansion, and after each the same number of independent turns."""
    task = load_tasks(["trajgym__spans-1.0"])[0]
    for seconds in given.policy_seconds:
        for name in given.expansions:
            for way in given.ways:
                settings: dict[str, Any] = {
                    "expansion": EXPANSIONS[name],
                    "snapshot_every": WAYS[way],
                }
                settings["seed"] = given.seed
                grown = figures(*await collect(kind, task, given.trees, seconds, **settings))
                samples = max(1, round(grown["turns"] / TURNS))
                chains = figures(*await collect(kind, task, samples, seconds, seed=given.seed))
                start, commands = await bare(kind, task)
                await close_shared_providers()
                share = grown["turns"] / TURNS / grown["leaves"]
                grown["bound_seconds_per_leaf"] = start + commands * share + seconds * TURNS * share
                chains["bound_seconds_per_leaf"] = start + commands + seconds * TURNS
                key = f"{kind}, {seconds:g} s a turn"
                kept = found.setdefault(key, {})
                kept.setdefault(f"{name}, {way}", []).append(grown)
                kept.setdefault(f"{name}, {way}: independent", []).append(chains)
                rate, other = grown["leaves_per_second"], chains["leaves_per_second"]
                print(f"{key}: {name}, {way}: {rate:.2f} leaves/s, {other:.2f}", flush=True)


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def show(found: dict[str, dict[str, dict[str, float]]]) -> None:
    for key, rows in found.items():
        print(
            f"\n{key}\n  {'':34} leaves  turns nested  leaves/s   s/leaf   bound   vs independent"
        )
        for name, row in rows.items():
            line = f"  {name:34}{row['leaves']:7.0f}{row['turns']:7.0f}{row['forks_of_forks']:7.0f}"
            line += f"{row['leaves_per_second']:10.2f}{row['sandbox_seconds_per_leaf']:9.3f}"
            line += f"{row['bound_seconds_per_leaf']:8.3f}"
            if "leaves_ratio" in row:
                line += f"   {row['leaves_ratio']:.2f} x leaves/s"
                line += f", {row['seconds_ratio']:.2f} x s/leaf"
            print(line)


def compare(rows: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return medians; ratios are medians of those of a round, whose parts ran one after another."""
    made = {name: medians(rounds) for name, rounds in rows.items()}
    for name in [name for name in rows if not name.endswith(": independent")]:
        pairs = list(zip(rows[name], rows[f"{name}: independent"], strict=True))
        for ratio, figure in (
            ("leaves_ratio", "leaves_per_second"),
            ("seconds_ratio", "sandbox_seconds_per_leaf"),
        ):
            made[name][ratio] = statistics.median(ours[figure] / its[figure] for ours, its in pairs)
    return made


async def measure(given: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for kind in given.kinds:
        try:
            await shared_provider(kind)
            await close_shared_providers()
        except SandboxUnavailable as error:
            print(f"left out: {kind}: {error}")
            continue
        for _ in range(given.rounds):
            await one_round(kind, given, found)
    return {key: compare(rows) for key, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["embedded", "docker"])
    parser.add_argument("--expansions", nargs="+", choices=EXPANSIONS, default=list(EXPANSIONS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--trees", type=int, default=4, help="sessions that are grown to trees")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policy-seconds", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--graded", action="store_true", help="grade the leaves by hidden tests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    environment("embedded").resolve().graded = given.graded  # type: ignore[attr-defined]
    before = os.getloadavg()[0]
    found = asyncio.run(measure(given))
    show(found)
    if given.json:
        result = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {
                "cpus": len(os.sched_getaffinity(0)),
                "python": platform.python_version(),
                "system": sys.platform,
                "load": [before, os.getloadavg()[0]],
            },
            "turns_of_an_attempt": TURNS,
            "concurrency": CONCURRENCY,
            "graded": given.graded,
            "expansions": {name: repr(expansion) for name, expansion in EXPANSIONS.items()},
            "figures": found,
        }
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
