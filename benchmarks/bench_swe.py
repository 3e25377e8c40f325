"""Time of grading SWE attempts, yield of building tasks, and test ids that ``-rA`` loses.

Grading is compared with its lower bound, starting a sandbox and running the same test files once,
and with grading without the tests' twins. Yields are read from the reports written by
`trajgym swe build --report` (see scripts/swe-corpus.sh).

Usage: python benchmarks/bench_swe.py [--json FILE] [--reports FOLDER] [--docker] [--suites]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trajgym.envs.sandbox import DockerProvider, EmbeddedProvider, SandboxProvider
from trajgym.envs.swe import SweRecord, grade, load_tasks, parse_junit, parse_log, prepare
from trajgym.trajectory import Task  # noqa: TC001

ROUNDS = 5
SUITES = (
    "andialbrecht__sqlparse-0.5.0-to-0.5.1",
    "pallets__jinja-3.1.2-to-3.1.3",
    "mahmoud__boltons-23.0.0-to-23.1.0",
)
OPTIONS = "--color=no -p no:cacheprovider -o junit_family=xunit1 --junitxml=/tmp/report.xml"


def files_of(task: Task) -> str:
    record = SweRecord.of(task)
    tests = [*record.FAIL_TO_PASS, *record.PASS_TO_PASS]
    return " ".join(map(shlex.quote, sorted({test.split("::")[0] for test in tests})))


async def bare(task: Task, provider: SandboxProvider) -> float:
    """Return the seconds to start a sandbox and run the task's test files in it."""
    spec = await prepare(task, provider)
    begun = time.perf_counter()
    async with await provider.start(spec) as sandbox:
        await sandbox.run(f"python3 -m pytest -q {OPTIONS} {files_of(task)}", timeout=300)
    return time.perf_counter() - begun


async def graded(task: Task, provider: SandboxProvider, *, twins: bool) -> float:
    spec = await prepare(task, provider)
    begun = time.perf_counter()
    outcome = await grade(task, task.data["patch"].encode(), provider, spec=spec, twins=twins)
    if not outcome.passed:
        raise SystemExit(f"{task.id}: gold does not pass: {outcome.details}")
    return time.perf_counter() - begun


async def grading(provider: SandboxProvider, rounds: int) -> dict[str, Any]:
    """Return medians for a small and a large test suite; measurements alternate."""
    found = {}
    for task in load_tasks(["trajgym__spans-1.0", SUITES[0]]):
        rows = [
            (
                await bare(task, provider),
                await graded(task, provider, twins=False),
                await graded(task, provider, twins=True),
            )
            for _ in range(rounds)
        ]
        least, ours, twins = (statistics.median(column) for column in zip(*rows, strict=True))
        found[task.id] = {
            "bare_seconds": round(least, 3),
            "graded_seconds": round(ours, 3),
            "ratio": round(ours / least, 2),
            "with_twins_seconds": round(twins, 3),
            "twins_ratio": round(twins / ours, 2),
        }
    return found


async def suites() -> dict[str, Any]:
    """Return how many test ids of a report are missing from the result of the ``-rA`` parser."""
    found = {}
    async with EmbeddedProvider() as provider:
        for task in load_tasks(SUITES):
            spec = await prepare(task, provider)
            async with await provider.start(spec) as sandbox:
                for name in ("test_patch", "patch"):
                    await sandbox.write_file(f"/tmp/{name}", task.data[name].encode())
                    await sandbox.run(f"git apply /tmp/{name}")
                command = f"python3 -m pytest -rA {OPTIONS} {files_of(task)} > /tmp/log 2>&1"
                await sandbox.run(command, timeout=300)
                log = (await sandbox.read_file("/tmp/log")).decode("utf-8", "replace")
                report = await sandbox.read_file("/tmp/report.xml")
            exact = parse_junit(report, files_of(task).split())
            parsed = parse_log(log, "parse_log_pytest")
            lost = [test for test in exact if test not in parsed]
            found[task.id] = {"ids": len(exact), "lost_by_rA": len(lost)}
    return found


def yields(folder: Path) -> dict[str, Any]:
    """Return totals of the reports of builds."""
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    kept = [report for report in reports if report["tasks"]]
    rules: Counter[str] = Counter()
    for report in kept:
        rules.update(report["rules"])
    return {
        "packages": {f"{r['package']} {r['version']}": r for r in kept},
        "tasks": sum(report["tasks"] for report in kept),
        "candidates": sum(report["candidates"] for report in kept),
        "unsound": sum(len(report["unsound"]) for report in kept),
        "seconds": round(sum(report["seconds"] for report in kept), 1),
        "rules": dict(rules.most_common()),
    }


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    async with EmbeddedProvider() as provider:
        figures["grading, embedded"] = await grading(provider, given.rounds)
    if given.docker:
        async with DockerProvider() as provider:
            figures["grading, docker"] = await grading(provider, given.rounds)
    if given.suites:
        figures["ids lost by -rA"] = await suites()
    if given.reports:
        figures["corpus"] = yields(given.reports)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--reports", type=Path, help="directory of build reports")
    parser.add_argument("--docker", action="store_true", help="also grade in Docker")
    parser.add_argument("--suites", action="store_true", help="count ids in three real suites")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each median")
    given = parser.parse_args()
    figures = asyncio.run(measure(given))
    print(json.dumps(figures, indent=1))
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"when": when, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
