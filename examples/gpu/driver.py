"""Go through the phases of the experiment in one process; run_all.sh starts it beside a server.

    python examples/gpu/driver.py --base MODEL --work SCRATCH --out RESULTS --seconds 540 \
        --phases prepare,timing,outcome:0,exactness,gigpo:0

Phases that are done are noted in SCRATCH and not done again: after a crash, or in another call,
the same command goes on. Arguments after -- go to the training runs (see train_async.py --help).
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
"""Seconds that must be left for a phase to begin."""


class Driver:
    """Does phases, and keeps what they share: the connection to the server."""

    def __init__(self, given: argparse.Namespace, transfer: Any = None) -> None:
        self.given = given
        self.transfer = transfer
        self.results = Results(given.out)
        self.deadline = time.time() + given.seconds
        self.sft = given.work / "sft"
        self.noted = given.work / "done"
        given.work.mkdir(parents=True, exist_ok=True)

    def all(self) -> bool:
        """Do what is left; return whether nothing broke."""
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
            except Exception:  # noqa: BLE001 - boundary: what broke is written down
                self.results.write("broken", phase=phase, error=traceback.format_exc()[-4000:])
                if phase == "exactness":  # the server has no part in it
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
        """Do a phase; return whether it went to its end."""
        server = ["--server", self.given.server, "--served", self.given.served]
        out = ["--out", str(self.given.out)]
        if phase == "prepare":
            wanted = ["--model", str(self.given.base), "--sft", str(self.sft)]
            wanted += [*server, *out, *self.given.prepare.split()]
            self.transfer = prepare.prepare(prepare.parser().parse_args(wanted), self.transfer)
            return True
        if phase == "exactness":
            return self.exactness(out)
        # A folder of its own for each try: a store is never written by two.
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
        """Check the newest run that went to its end."""
        ended = sorted(self.given.work.glob("**/updates.json"), key=lambda p: p.stat().st_mtime)
        if not ended:
            return False
        run = ["--model", str(self.sft), "--run", str(ended[-1].parent)]
        exactness.check(exactness.parser().parse_args([*run, *out]))
        return True


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--base", type=Path, required=True, help="folder of SmolLM2-135M-Instruct")
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
