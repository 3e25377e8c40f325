"""Run the phases of the experiment in one process; run_all.sh starts it together with a server.

    python examples/gpu/driver.py --base MODEL --work SCRATCH --out RESULTS --seconds 540 \
        --phases prepare,timing,outcome:0,exactness,gigpo:0

Completed phases are recorded in SCRATCH and not repeated, so the same command resumes after a
crash. Arguments after -- are passed to the training runs (see train_async.py --help).
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import exactness
import prepare
import train_async
import train_sync
from lab import Results

PHASES = "prepare,timing,outcome:0,exactness,gigpo:0,outcome:1,gigpo:1,outcome:2,gigpo:2"
_LEAST = 25.0
"""A phase is started only if more seconds than this are left."""


class Driver:
    """Runs phases, which share its connection to the server."""

    def __init__(self, given: argparse.Namespace, transfer: Any = None) -> None:
        self.given = given
        self.transfer = transfer
        self.results = Results(given.out)
        self.deadline = time.time() + given.seconds
        self.sft = given.work / "sft"
        self.noted = given.work / "done"
        given.work.mkdir(parents=True, exist_ok=True)

    def all(self) -> bool:
        """Run the remaining phases, and return whether none failed."""
        noted = self.noted.read_text().splitlines() if self.noted.exists() else []
        done = {phase: float(seconds) for phase, seconds in map(str.split, noted)}
        longest = max((done[phase] for phase in done if ":" in phase), default=0.0)
        for phase in self.given.phases.split(","):
            left = self.deadline - time.time()
            if phase in done:
                continue
            if left < max(_LEAST, 1.1 * longest * (":" in phase)):
                self.results.write("skipped", phase=phase, seconds_left=left)
                continue
            begun = time.time()
            try:
                complete = self.one(phase)
            except Exception:  # noqa: BLE001 - a phase's failure is written to the results
                self.results.write("broken", phase=phase, error=traceback.format_exc()[-4000:])
                if phase == "exactness":  # it does not use the server
                    continue
                return False
            train_async.release()
            seconds = time.time() - begun
            longest = max(longest, seconds * (":" in phase))
            if complete:
                with self.noted.open("a") as file:
                    file.write(f"{phase} {seconds}\n")
            self.results.write("phase", phase=phase, seconds=seconds, complete=complete)
        return True

    def one(self, phase: str) -> bool:
        """Run a phase, and return whether it completed."""
        server = ["--server", self.given.server, "--served", self.given.served]
        out = ["--out", str(self.given.out)]
        if phase == "prepare":
            wanted = ["--model", str(self.given.base), "--sft", str(self.sft)]
            wanted += [*server, *out, *self.given.prepare.split()]
            self.transfer = prepare.prepare(prepare.parser().parse_args(wanted), self.transfer)
            return True
        if phase == "exactness":
            return self.exactness(out)
        # Each try has its own directory, because a store must have one writer.
        work = self.given.work
        if (work / phase.replace(":", "-")).exists() or phase == "timing":
            work = work / f"try-{int(time.time())}"
        wanted = ["--model", str(self.sft), "--work", str(work), *server, *out]
        wanted += ["--deadline", str(self.deadline), *self.given.train]
        options = train_async.parser().parse_args(wanted)
        if phase == "timing":
            options.steps = min(options.steps, self.given.timing_steps)
            options.batch = self.given.timing_batch or options.batch
            options.concurrency = max(options.concurrency, options.batch * options.accumulate)
            return train_sync.compare(options, self.transfer)
        lab = train_async.Lab(options, self.transfer)
        deriver, _, seed = phase.partition(":")
        report = lab.run(phase, deriver, int(seed or 0))
        self.transfer = lab.transfer
        return not report["cut"]

    def exactness(self, out: list[str]) -> bool:
        """Check the newest complete run."""
        ended = sorted(self.given.work.glob("**/updates.json"), key=lambda p: p.stat().st_mtime)
        if not ended:
            return False
        run = ["--model", str(self.sft), "--run", str(ended[-1].parent)]
        exactness.check(exactness.parser().parse_args([*run, *out]))
        return True


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--base", type=Path, required=True, help="SmolLM2-135M-Instruct, a directory")
    made.add_argument("--work", type=Path, required=True)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--seconds", type=float, default=3600.0)
    made.add_argument("--phases", default=PHASES)
    made.add_argument("--timing-steps", type=int, default=30)
    made.add_argument("--timing-batch", type=int, default=64, help="sessions of a small batch")
    made.add_argument("--prepare", default="", help="arguments of prepare.py, in one string")
    made.add_argument("--server", default="http://127.0.0.1:8000")
    made.add_argument("--served", default="policy")
    made.add_argument("train", nargs="*", help="arguments of train_async.py, after --")
    return made


if __name__ == "__main__":
    sys.exit(0 if Driver(parser().parse_args()).all() else 1)
