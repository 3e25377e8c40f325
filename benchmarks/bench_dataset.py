"""Time and peak memory of commands over a large run, beside a plain read of the same bytes.

Each command runs in an interpreter of its own; its peak resident memory is what the kernel reports.
Two runs are written, one with a tenth of the sessions: memory must not grow with the run. The lower
bounds of the same machine are a read of the store's file, and a scan of all its rows with SQLite.

Usage: python benchmarks/bench_dataset.py [--sessions 100000] [--turns 15] [--only show,filter]
       [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    Sampling,
    Segment,
    SessionRecord,
    Status,
    Store,
    Task,
    Turn,
    TurnTokens,
)
from trajgym.trajectory._codec import encode
from trajgym.trajectory.datasets._copy import Copy
from trajgym.trajectory.datasets._source import Source

GROUP = 8
NEW, SAMPLED = 40, 24
"""Prompt ids and response ids per turn."""

READ = """
import sys
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.read(1 << 20):
        pass
"""
SCAN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
for table in ("sessions", "attempts", "turns", "groups", "tasks"):
    for row in connection.execute("SELECT * FROM " + table):
        pass
"""
LAUNCH = """
import json, os, sys, time
begun = time.perf_counter()
null = os.open(os.devnull, os.O_WRONLY)
redirect = [(os.POSIX_SPAWN_DUP2, null, 1)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=redirect)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - begun
if status:
    sys.exit(f"{sys.argv[1:]}: exit status {os.waitstatus_to_exitcode(status)}")
cpu = usage.ru_utime + usage.ru_stime
peak = usage.ru_maxrss / 1024
print(json.dumps({"seconds": round(seconds, 2), "cpu_s": round(cpu, 2), "peak_mb": round(peak, 1)}))
"""
"""Runs a command from a small process: a child's peak begins with its parent's memory."""
TRAJGYM = [sys.executable, "-m", "trajgym.cli"]
COMMANDS: dict[str, list[str]] = {
    "read": [sys.executable, "-c", READ, "RUN/store.sqlite"],
    "scan": [sys.executable, "-c", SCAN, "RUN/store.sqlite"],
    "show": [*TRAJGYM, "show", "RUN"],
    "stats": [*TRAJGYM, "stats", "RUN"],
    "filter": [*TRAJGYM, "dataset", "filter", "RUN", "--where", "solve_rate > 0", "--out", "OUT"],
    "reward": [*TRAJGYM, "reward", "RUN", "--with", "grpo"],
    "export-sft": [*TRAJGYM, "export", "RUN", "--to", "sft", "--out", "OUT"],
    "export-rows": [*TRAJGYM, "export", "RUN", "--to", "rows", "--out", "OUT"],
    "export-parquet": [*TRAJGYM, "dataset", "export", "RUN", "--out", "OUT"],
    "plot": [*TRAJGYM, "plot", "RUN", "--out", "OUT"],
    "redact": [*TRAJGYM, "dataset", "redact", "RUN", "--out", "OUT"],
    "contamination": [*TRAJGYM, "dataset", "contamination", "RUN", "EVAL", "--out", "OUT"],
}
"""Commands by name, in the order in which they run."""

_WORDS = """
the a file test error line function returns value class import path run command output fails passes
module list index key name string number call result expected got assert fix patch
"""
WORDS = np.array(_WORDS.split())
BASE = 1000
"""Sessions that are made; further ones are copies of them under other ids."""


def write_run(path: Path, sessions: int, turns: int) -> None:
    """Write a run of exact turns with a tool call and its result each."""
    chance = np.random.default_rng(0)
    with Store(path) as store:
        for index in range(sessions):
            group, name = f"g{index // GROUP}", f"s{index}"
            if index % GROUP == 0:
                task = Task(id=f"t{index // GROUP}", prompt=prose(chance, 30))
                store.put_task(task)
            store.begin_session(
                SessionRecord(
                    id=name,
                    task=task.id,
                    env={"id": "bench", "config": {}},
                    group=group,
                    sample=index % GROUP,
                    labels={"policy": "engine:fake"},
                    created_at=1.7e9 + index,
                )
            )
            at = 0
            for turn in range(turns):
                store.append_turn(name, a_turn(chance, turn, at, str(task.prompt), index))
                at += NEW + SAMPLED
            outcome = Outcome(score=float(chance.random() < 0.5), passed=False)
            outcome.passed = outcome.score == 1.0
            end = Attempt(
                leaf=turns - 1,
                status=Status("completed"),
                outcome=outcome,
                ended_at=1.7e9 + index + 60,
            )
            ack = store.put_attempt(name, end)
            if index % GROUP == GROUP - 1 or index == sessions - 1:
                first = index // GROUP * GROUP
                members = [Member(f"s{i}", i - first) for i in range(first, index + 1)]
                store.put_group(
                    Group(id=group, task=task.id, planned=GROUP, members=members, sealed=True)
                )
            if index % 500 == 499:
                ack.wait()


def multiply(base: Path, path: Path, sessions: int) -> None:
    """Write a run whose sessions, groups and tasks are copies of another one's."""
    with Source(base) as source, Copy(path) as copy:
        held = [(place.record, source.rows(place)) for place in source.places()]
        groups, tasks = list(source.run.groups()), list(source.run.tasks())
        for number in range(sessions // len(held)):

            def new(name: str | None, number: int = number) -> str:
                return f"{name}-{number}"

            for record, rows in held:
                own = replace(
                    record,
                    id=new(record.id),
                    task=new(record.task),
                    group=new(record.group),
                    created_at=record.created_at + number * len(held),
                )
                copy.write_session(own, rows)
            for group in groups:
                members = [one._replace(session=new(one.session)) for one in group.members]
                copy.add_group(
                    replace(group, id=new(group.id), task=new(group.task), members=members)
                )
            for task in tasks:
                body = encode(task.model_copy(update={"id": new(task.id)}))
                copy.add_task(body, new(task.id))


def prose(chance: np.random.Generator, n: int) -> str:
    return " ".join(WORDS[chance.integers(0, WORDS.size, n)])


def a_turn(chance: np.random.Generator, turn: int, at: int, prompt: str, session: int) -> Turn:
    arguments = json.dumps({"command": f"cat {prose(chance, 4)}"})
    call = {"id": f"c{turn}", "type": "function"}
    call["function"] = {"name": "bash", "arguments": arguments}  # type: ignore[assignment]
    observed = {"role": "tool", "tool_call_id": f"c{turn}", "content": prose(chance, 50)}
    return Turn(
        index=turn,
        parent=turn - 1 if turn else None,
        context=[] if turn else [{"role": "user", "content": prompt}],
        message={"role": "assistant", "content": prose(chance, 20), "tool_calls": [call]},
        observation=[observed],
        calls=[CallResult(call_id=f"c{turn}", name="bash", status="ok", seconds=0.1)],
        policy="engine:fake",
        sampling=Sampling(temperature=1.0, logprob_mode="processed"),
        started_at=1.7e9 + session + turn,
        policy_seconds=0.5,
        env_seconds=0.1,
        tokens=TurnTokens(
            prompt_kept=at,
            prompt_ids=chance.integers(0, 50_000, NEW, dtype=np.int32),
            response_ids=chance.integers(0, 50_000, SAMPLED, dtype=np.int32),
            logprobs=-chance.random(SAMPLED, dtype=np.float32),
            segments=(Segment(SAMPLED, session // 5000, session // 5000),),
        ),
    )


def measure(command: list[str], run: Path, evaluation: Path, out: Path) -> dict[str, float]:
    """Return seconds, CPU seconds, peak resident memory (MB) and the load before a command."""
    load = os.getloadavg()[0]
    places = {"RUN": str(run), "OUT": str(out), "EVAL": str(evaluation)}
    words = [places.get(word, word.replace("RUN/", f"{run}/")) for word in command]
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", LAUNCH, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    shutil.rmtree(out, ignore_errors=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"load": round(load, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--only", help="commands, separated by commas; all by default")
    parser.add_argument("--runs", type=Path, help="keep the runs in this directory, and use them")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(COMMANDS)
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(dir=given.runs) as folder:
        home = given.runs or Path(folder)
        chance = np.random.default_rng(1)
        tasks = [Task(id=f"e{n}", prompt=prose(chance, 40)) for n in range(500)]
        (home / "eval.jsonl").write_text("\n".join(task.model_dump_json() for task in tasks))
        made = min(BASE, given.sessions // 10)
        base = Path(folder) / "base"
        write_run(base, made, given.turns)
        for sessions in (given.sessions // 10, given.sessions):
            run = home / f"run-{sessions}"
            begun = time.perf_counter()
            if not run.exists():
                multiply(base, run, sessions)
            size = sum(file.stat().st_size for file in run.iterdir()) / 2**20
            written = time.perf_counter() - begun
            print(f"{sessions} sessions of {given.turns} turns, {size:.0f} MB ({written:.0f} s)")
            figures.setdefault("size_mb", {})[str(sessions)] = round(size, 1)
            for name in names:
                found = measure(COMMANDS[name], run, home / "eval.jsonl", Path(folder) / "out")
                figures.setdefault(name, {})[str(sessions)] = found
                write_figures(given.json, given.turns, figures)
                print(
                    f"  {name:15} {found['seconds']:8.1f} s {found['cpu_s']:8.1f} s CPU  "
                    f"peak {found['peak_mb']:7.1f} MB",
                    flush=True,
                )


def write_figures(path: Path | None, turns: int, figures: dict[str, dict[str, object]]) -> None:
    """Write what was measured so far."""
    if path is not None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
        found = {"when": when, **machine, "turns": turns, "commands": figures}
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
