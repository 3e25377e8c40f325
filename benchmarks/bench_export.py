"""Peak memory and speed of exporting runs of different sizes; memory must not grow with the run.

Each export runs in its own interpreter. The lower bound in the same run is reading the run without
exporting anything.

Usage: python benchmarks/bench_export.py [--sessions 10000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from trajgym.trajectory import (
    Attempt,
    Group,
    Member,
    Outcome,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument(
        "--to", default="sft,rows,trl-grpo,verl,areal", help="exports, separated by commas"
    )
    given = parser.parse_args()
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
