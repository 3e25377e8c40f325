"""Peak memory and speed of exporting runs of different sizes; memory must not grow with the run.

Each export runs in its own interpreter. The lower bound in the same run is reading the run without
exporting anything.

With ``--cost``, it measures the CPU time of ``--to rows`` a session instead, in one process, beside
its lower bound: reading the sessions, and pyarrow writing the same tables, since both are needed
for the same file. Figures are the least of the rounds, because other work on the machine only adds.

Usage: python benchmarks/bench_export.py [--sessions 10000] [--cost] [--rounds 7] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from trajgym.trajectory import (
    Attempt,
    Group,
    Member,
    Outcome,
    Run,
    Sampling,
    Segment,
    SessionRecord,
    Status,
    Store,
    Turn,
    TurnTokens,
)

TURNS, PROMPT, SAMPLED, GROUP = 10, 74, 80, 8

CHILD = """
import resource, sys, time
from pathlib import Path
from trajgym.trajectory import Run
name, path, out = sys.argv[1:]
started = time.perf_counter()
with Run(path) as run:
    if name == "read":
        n = sum(1 for _ in run.sessions())
    else:
        from trajgym.adapters import export
        from trajgym.rewards import TurnTable, get_deriver
        values = []
        if name not in ("sft",):
            deriver = get_deriver("outcome" if name in ("verl", "areal") else "grpo")
            values = deriver.derive(TurnTable.build(run.groups(), run.sessions()))
        options = {"include": "all"} if name == "sft" else {}
        n = export(name, run.sessions(), run.groups(), Path(out), values=values, **options).written
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(n, time.perf_counter() - started, peak)
"""


def write_run(path: Path, sessions: int) -> None:
    """Write sessions of 10 exact turns (1,540 tokens, 800 of them sampled)."""
    chance = np.random.default_rng(0)
    with Store(path) as store:
        for index in range(sessions):
            group, name = f"g{index // GROUP}", f"s{index}"
            store.begin_session(
                SessionRecord(id=name, task=group, env={"id": "bench"}, group=group),
            )
            at = 0
            for turn in range(TURNS):
                tokens = TurnTokens(
                    prompt_kept=at,
                    prompt_ids=chance.integers(0, 50_000, PROMPT, dtype=np.int32),
                    response_ids=chance.integers(0, 50_000, SAMPLED, dtype=np.int32),
                    logprobs=-chance.random(SAMPLED, dtype=np.float32),
                    segments=(Segment(SAMPLED, 1, 1),),
                )
                at += PROMPT + SAMPLED
                message = {"role": "assistant", "content": f"turn {turn} of {name}"}
                observation = [{"role": "user", "content": "go on"}]
                parent = turn - 1 if turn else None
                store.append_turn(
                    name,
                    Turn(
                        index=turn,
                        parent=parent,
                        message=message,
                        observation=observation,
                        tokens=tokens,
                        sampling=Sampling(temperature=1.0, logprob_mode="processed"),
                        context=[] if turn else observation,
                    ),
                )
            outcome = Outcome(score=float(index % 2), passed=bool(index % 2))
            end = Attempt(leaf=TURNS - 1, status=Status("completed"), outcome=outcome)
            ack = store.put_attempt(name, end)
            if index % GROUP == GROUP - 1 or index == sessions - 1:
                first = index // GROUP * GROUP
                members = [Member(f"s{i}", i - first) for i in range(first, index + 1)]
                store.put_group(
                    Group(id=group, task=group, planned=GROUP, members=members, sealed=True),
                )
                ack.wait()


def cost(path: Path, out: Path, rounds: int) -> dict[str, float]:
    """Return CPU milliseconds a session of exporting rows, and of the two parts of its bound."""
    import pyarrow.parquet as pq

    from trajgym.adapters import export
    from trajgym.rewards import TurnTable, get_deriver

    found: dict[str, list[float]] = {"rows": [], "read": [], "write": []}
    now = time.process_time
    with Run(path) as run:
        values = get_deriver("grpo").derive(TurnTable.build(run.groups(), run.sessions()))
        for _ in range(rounds):
            begun = now()
            report = export("rows", run.sessions(), run.groups(), out, values=values)
            found["rows"].append(now() - begun)
            begun = now()
            sessions = sum(1 for _ in run.sessions())
            found["read"].append(now() - begun)
            with pq.ParquetFile(report.files[0]) as file:
                tables = [file.read_row_group(i) for i in range(file.num_row_groups)]
                schema = file.schema_arrow
            again = out / "again.parquet"
            begun = now()
            with pq.ParquetWriter(again, schema) as writer:
                for table in tables:
                    writer.write_table(table)
            found["write"].append(now() - begun)
    return {name: min(seconds) / sessions * 1e3 for name, seconds in found.items()}


def report_cost(sessions: int, rounds: int, file: Path | None) -> None:
    """Measure and print the cost of rows; write it to a file, with the time and the machine."""
    with tempfile.TemporaryDirectory() as directory:
        write_run(Path(directory, "run"), sessions)
        figures = cost(Path(directory, "run"), Path(directory, "out"), rounds)
    bound = figures["read"] + figures["write"]
    print(
        f"CPU ms a session of {TURNS} turns: {figures}; {figures['rows'] / bound:.2f} x the bound"
    )
    if file is not None:
        found: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds")}
        cpus = len(os.sched_getaffinity(0))
        found["machine"] = {"cpus": cpus, "python": platform.python_version()}
        found |= {"sessions": sessions, "turns": TURNS, "cpu_ms_per_session": figures}
        file.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument(
        "--to", default="sft,rows,trl-grpo,verl,areal", help="exports, separated by commas"
    )
    parser.add_argument("--cost", action="store_true", help="CPU time of rows, and its bound")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file for the figures of --cost")
    given = parser.parse_args()
    if given.cost:
        report_cost(given.sessions, given.rounds, given.json)
        return
    largest = given.sessions
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for sessions in (largest // 10, largest):
            started = time.perf_counter()
            path = root / f"run{sessions}"
            write_run(path, sessions)
            print(f"{sessions} sessions written in {time.perf_counter() - started:.1f} s")
            base = None
            for name in ("read", *given.to.split(",")):
                out = root / f"out-{name}-{sessions}"
                command = [sys.executable, "-c", CHILD, name, str(path), str(out)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                n, seconds, peak = (float(word) for word in done.stdout.split())
                base = base or peak
                print(
                    f"  {name:9} {n:8.0f} records {seconds:7.2f} s  peak {peak:7.1f} MB  "
                    f"{peak / base:5.2f} x reading alone",
                )


if __name__ == "__main__":
    main()
