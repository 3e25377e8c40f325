"""A long collection in real sandboxes, with random failures of every part.

A fleet of processes collects sessions of the shipped code environment. An engine in a process of
its own answers over HTTP, so that turns are exact. While it runs

- the engine is killed and started again, answers with 500, cuts answers, is slow, rejects sessions,
- sandboxes are killed with SIGKILL, containers removed from outside,
- the environment raises in reset, in a tool, in verification,
- workers are killed with SIGKILL and stopped with SIGSTOP, and once the fleet's own process is
  killed; the run is then resumed,

all drawn from a seed. The first worker is spared, so that its memory shows a leak. At the end the
totals are compared: each sample is there exactly once with its outcome or failed by name, no
failure has a score, all acknowledged turns are stored with the engine's ids, nothing is left.
The exit status is 1 if anything is wrong. The bounds of "flat" are in ``BOUNDS``: growth in 1,000
sessions over the second half, of the process that lived longest.

Usage: python -m benchmarks.bench_soak [--sessions 10000] [--sandbox embedded] [--processes 4]
           [--concurrency 16] [--seed 0] [--minutes 40] [--json FILE] [--plot FILE] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from benchmarks.soak import (
    Acknowledged,
    Chaos,
    Machine,
    Plan,
    Sample,
    compare,
    left_behind,
    slope,
)

BOUNDS = {"memory": 2_000_000.0, "descriptors": 2.0, "threads": 1.0, "mounts": 2.0}
"""Most growth in 1,000 sessions: bytes, and numbers."""
ENOUGH = 1000
"""Sessions of a process below which its growth is not judged: it is still warming up."""
LOOK = 1.0
"""Seconds between two samples."""


class Engine:
    """The engine's process."""

    def __init__(self, plan: Plan) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self._plan = plan
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        module = "benchmarks.soak._engine"
        command = [sys.executable, "-m", module, str(self.port), self._plan.to_json()]
        return subprocess.Popen(command)

    def restart(self) -> None:
        """Kill it, and start it again; meanwhile connections are refused."""
        self.close()
        self.process = self._start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Soak:
    """One soak.

    Args:
        plan: what is done.
        folder: for the run, sandboxes and temporary files.
        seconds: after which no further tasks are begun.
    """

    def __init__(self, plan: Plan, folder: Path, seconds: float) -> None:
        self.plan = plan
        self.folder = folder
        self.seconds = seconds
        self.seen = Acknowledged()
        self.samples: list[Sample] = []
        self.totals: list[dict[str, Any]] = []
        self.workers: set[int] = set()
        self.deaths = 0
        self.report: dict[str, Any] = {}
        self._begun = time.monotonic()
        self._engine = Engine(plan)
        self._chaos = Chaos(plan, self._engine.restart)

    def run(self) -> None:
        """Collect, and resume if the fleet's process was killed."""
        try:
            while not self.report:
                self._collect()
        finally:
            self._engine.close()

    @property
    def faults(self) -> Counter[str]:
        """How often what was let fail from outside."""
        return self._chaos.done

    def machine(self, parent: int) -> Machine:
        return Machine(
            parent, self.folder / "run", self.folder / "sandboxes", self.folder / "temporary"
        )

    def _collect(self) -> None:
        for name in ("run", "temporary"):
            (self.folder / name).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.soak._collect", str(self.folder / "run")]
        with subprocess.Popen(
            [*command, str(self._engine.port), self.plan.to_json()],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "TRAJGYM_SANDBOX_DIR": str(self.folder / "sandboxes"),
                "TMPDIR": str(self.folder / "temporary"),
            },
        ) as parent:
            assert parent.stdout is not None
            lines: queue.SimpleQueue[str] = queue.SimpleQueue()
            threading.Thread(target=_read, args=(parent.stdout, lines), daemon=True).start()
            machine = self.machine(parent.pid)
            while (line := self._next(lines, machine)) != "":
                if line.startswith("complete "):
                    self.report = json.loads(line.partition(" ")[2])
                elif line.endswith("\n"):
                    self.seen.note(line)
        if not self.report:
            if self._chaos.done["parent killed"] != 1 or self.seen.killed:
                raise SystemExit(f"the fleet ended with status {parent.returncode}")
            self.seen.killed = True

    def _next(self, lines: queue.SimpleQueue[str], machine: Machine) -> str:
        """Return the next line; meanwhile let parts fail, and look at the processes."""
        while True:
            now = time.monotonic() - self._begun
            if not self.samples or now - self.samples[-1].at >= LOOK:
                ended = len(self.seen.ended)
                self.workers |= set(machine.workers().values())
                self.samples += machine.sample(now, ended)
                self.totals.append({"at": round(now, 1), "ended": ended, **machine.totals()})
                self._chaos.act(machine, ended)
                if now > self.seconds:
                    (self.folder / "stop").touch()
            try:
                return lines.get(timeout=LOOK)
            except queue.Empty:
                continue


def _read(pipe: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put("")


def growth(samples: list[Sample]) -> list[dict[str, Any]]:
    """Return how much each figure of the parent and the longest worker grows."""
    lives: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for one in samples:
        lives[one.role, one.pid].append(one)
    found = []
    for role in ("parent", "worker 0"):
        its = [life for (name, _), life in lives.items() if name == role]
        life = max(its, key=lambda life: life[-1].ended - life[0].ended)
        half = [one for one in life if one.ended >= (life[0].ended + life[-1].ended) / 2]
        found.append(
            {
                "role": role,
                "sessions_of_the_fleet": life[-1].ended - life[0].ended,
                "judged": life[-1].ended - life[0].ended >= ENOUGH,
                "growth_in_1000_sessions": {name: round(slope(life, name), 2) for name in BOUNDS},
                "most_in_second_half": {
                    name: max(getattr(one, name) for one in half) for name in BOUNDS
                },
                "cpu_seconds": life[-1].cpu,
            }
        )
    return found


def series(samples: list[Sample], role: str, points: int = 50) -> list[list[float]]:
    """Return sessions that ended, MB and descriptors of a process, at some moments."""
    its = [one for one in samples if one.role == role]
    chosen = its[:: max(1, len(its) // points)]
    return [[one.ended, round(one.memory / 1e6, 1), one.descriptors] for one in chosen]


def plot(samples: list[Sample], totals: list[dict[str, Any]], file: Path) -> None:
    """Draw memory, descriptors and sandbox processes by sessions that ended."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    for name, panel, scale in (("memory", panels[0], 1e6), ("descriptors", panels[1], 1)):
        for role in sorted({one.role for one in samples}):
            its = [one for one in samples if one.role == role]
            x, y = [one.ended for one in its], [getattr(one, name) / scale for one in its]
            panel.plot(x, y, ".", markersize=2, label=role)
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("resident memory, MB")
    panels[1].set_ylabel("open descriptors")
    panels[0].legend(fontsize=7)
    for name in ("sandbox_processes", "sandbox_folders"):
        x, y = [one["ended"] for one in totals], [one[name] for one in totals]
        panels[2].plot(x, y, ".", markersize=2, label=name.replace("_", " "))
    panels[2].legend(fontsize=7)
    for panel in panels:
        panel.set_xlabel("sessions ended")
    figure.savefig(file, dpi=110)


def judge(soak: Soak) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of a soak, and what is wrong."""
    plan = soak.plan
    machine = soak.machine(0)
    stopped = (soak.folder / "stop").exists()
    totals, wrong = compare(machine.run, plan, soak.seen, stopped=stopped)
    grown = growth(soak.samples)
    for one in grown:
        for name, bound in BOUNDS.items() if one["judged"] else ():
            if (found := one["growth_in_1000_sessions"][name]) > bound:
                wrong.append(f"{one['role']}: {name} grows by {found:g} in 1,000 sessions")
    injected = soak.faults["worker killed"] + soak.faults["worker stopped"]
    figures = {
        "totals": totals,
        "faults": dict(soak.faults),
        "worker_deaths_after_the_resume" if soak.seen.killed else "worker_deaths": soak.report[
            "deaths"
        ],
        "worker_deaths_drawn": injected,
        "growth": grown,
        "most": {
            name: max(one[name] for one in soak.totals)
            for name in ("sandbox_processes", "sandbox_folders", "temporary_files")
        },
        "shards": soak.totals[-1]["shards"],
        "series": {role: series(soak.samples, role) for role in ("parent", "worker 0")},
        "bounds": BOUNDS,
    }
    return figures, wrong


def show(figures: dict[str, Any], wrong: list[str], seconds: float) -> None:
    """Print the figures as a table."""
    totals = figures["totals"]
    print(f"{totals['samples']} samples, {totals['sessions']} sessions in {seconds:.0f} s")
    for name in ("scored", "failed_by_name", "turns", "acknowledged_turns"):
        print(f"  {name.replace('_', ' '):34} {totals[name]:8}")
    for part in ("statuses", "causes"):
        for name, count in totals[part].items():
            print(f"  {part}: {name:70} {count:6}")
    for name, count in figures["faults"].items():
        print(f"  faults: {name:26} {count:8}")
    for one in figures["growth"]:
        judged = "" if one["judged"] else "  (too short to be judged)"
        print(f"  {one['role']}: {one['sessions_of_the_fleet']} sessions{judged}")
        for name, value in one["growth_in_1000_sessions"].items():
            most = one["most_in_second_half"][name]
            print(f"    {name:14} most {most:12}  growth in 1,000 sessions {value:14.2f}")
    for one in wrong[:40]:
        print(f"  WRONG: {one}")
    print(f"{len(wrong)} wrong" if wrong else "everything adds up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--sandbox", choices=["embedded", "docker"], default="embedded")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no task afterwards")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--keep", type=Path, help="an empty folder for the run, which stays")
    given = parser.parse_args()
    plan = Plan(
        sessions=given.sessions,
        sandbox=given.sandbox,
        processes=given.processes,
        concurrency=given.concurrency,
        seed=given.seed,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        begun = time.monotonic()
        soak = Soak(plan, folder, given.minutes * 60)
        soak.run()
        seconds = time.monotonic() - begun
        figures, wrong = judge(soak)
        left = left_behind(soak.machine(0), soak.workers, plan.sandbox)
        wrong += [f"left behind: {one}" for one in left]
    show(figures, wrong, seconds)
    if given.plot:
        plot(soak.samples, soak.totals, given.plot)
    if given.json:
        found = json.loads(given.json.read_text()) if given.json.exists() else {}
        found[plan.sandbox] = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {
                "cpus": len(os.sched_getaffinity(0)),
                "python": platform.python_version(),
                "system": sys.platform,
            },
            "plan": asdict(plan),
            "seconds": round(seconds, 1),
            **figures,
            "wrong": wrong,
        }
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
