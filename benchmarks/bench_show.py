"""How long `trajgym show` takes for a large run, beside reading the same rows with SQLite alone.

The command runs in an interpreter of its own and prints to a pipe, one line per session; the time
of the interpreter's start and imports is measured apart, by showing a run of one session. The lower
bound reads the bodies of all sessions and attempts, and counts the turns, without decoding them.

Usage: python benchmarks/bench_show.py [--sessions 100000] [--turns 10] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from trajgym.trajectory import Attempt, Outcome, SessionRecord, Status, Store, Turn

GOAL_SECONDS, GOAL_SESSIONS = 2.0, 100_000
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the sandbox and return its output.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def write_run(path: Path, sessions: int, turns: int) -> None:
    """Write sessions of text turns; their records are as large as those of a collected run."""
    with Store(path) as store:
        for index in range(sessions):
            name = f"{index // 8:016x}-{index % 8}"
            store.begin_session(
                SessionRecord(
                    id=name,
                    task=f"task-{index // 8}",
                    env={"id": "bench", "config": {}},
                    group=f"{index // 8:016x}",
                    sample=index % 8,
                    seed=index,
                    tools=[TOOL],
                    budgets={"turns": 20, "seconds": 600.0, "observation_bytes": 65536},
                    labels={"policy": "engine:fake"},
                    created_at=1.7e9 + index,
                )
            )
            for turn in range(turns):
                message = {"role": "assistant", "content": "I look."}
                ack = store.append_turn(
                    name, Turn(index=turn, parent=turn - 1 if turn else None, message=message)
                )
            outcome = Outcome(score=float(index % 2), passed=bool(index % 2))
            end = Attempt(leaf=turns - 1, status=Status("completed"), outcome=outcome)
            ack = store.put_attempt(name, end)
            if index % 1000 == 999:
                ack.wait()


def show(path: Path) -> float:
    """Return the seconds in which the command prints the run."""
    command = [sys.executable, "-m", "trajgym.cli", "show", str(path)]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def read(path: Path) -> float:
    """Return the seconds in which SQLite reads what is shown."""
    begun = time.perf_counter()
    connection = sqlite3.connect(path / "store.sqlite")
    for sql in (
        "SELECT key, body FROM sessions",
        "SELECT session, body FROM attempts",
        "SELECT key >> 20, max(key) FROM turns GROUP BY key >> 20",
    ):
        connection.execute(sql).fetchall()
    connection.close()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=GOAL_SESSIONS)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder) / "one", Path(folder) / "many"
        write_run(one, 1, given.turns)
        write_run(many, given.sessions, given.turns)
        figures = {
            "show_s": min(show(many) for _ in range(given.rounds)),
            "start_s": min(show(one) for _ in range(given.rounds)),
            "sqlite_s": min(read(many) for _ in range(given.rounds)),
        }
    a_session = (figures["show_s"] - figures["start_s"]) / given.sessions * 1e6
    print(f"{given.sessions} sessions of {given.turns} turns: {figures['show_s']:.2f} s to show")
    print(f"  of these, {figures['start_s']:.2f} s to start; {a_session:.1f} us a session")
    ratio = (figures["show_s"] - figures["start_s"]) / figures["sqlite_s"]
    print(f"  SQLite alone: {figures['sqlite_s']:.2f} s (ratio {ratio:.1f})")
    if given.sessions == GOAL_SESSIONS:
        met = figures["show_s"] < GOAL_SECONDS
        print(f"  goal: under {GOAL_SECONDS:.0f} s: {'met' if met else 'missed'}")
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        found = {"when": when, "sessions": given.sessions, "turns": given.turns, **figures}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
