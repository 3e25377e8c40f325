"""Collections in real sandboxes, ended by SIGKILL and SIGTERM at random moments and resumed.

Losses are counted: acknowledged turns that are not in the store, samples scored twice or never,
sandboxes left running. Any loss fails the run. The restart is timed, from the start of the process
to its first acknowledged turn, and compared with its lower bound, the import of the packages.

Usage: python -m benchmarks.bench_kills [--kills 100] [--kinds docker embedded]
           [--signals SIGKILL SIGTERM] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kills import kill_and_resume

IMPORTS = "import trajgym.rollout, trajgym.envs.sandbox"


def import_seconds() -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return time.monotonic() - begun


def measure(kind: str, number: signal.Signals, kills: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(kill_and_resume(Path(folder), kind, number, kills, tasks=kills))
    restart = statistics.median(tally.seconds)
    bound = statistics.median(import_seconds() for _ in range(5))
    return {
        "sandbox": kind,
        "signal": number.name,
        "kills": tally.kills,
        "acknowledged_turns": tally.turns,
        "lost_turns": 0,
        "sandboxes_left": 0,
        "sessions": dict(tally.statuses),
        "restart_seconds": round(restart, 2),
        "import_seconds": round(bound, 2),
        "ratio": round(restart / bound, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", default=["docker", "embedded"])
    parser.add_argument("--signals", nargs="+", default=["SIGKILL", "SIGTERM"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for kind in given.kinds:
        for name in given.signals:
            found.append(measure(kind, signal.Signals[name], given.kills))
            print(json.dumps(found[-1]), flush=True)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": sys.platform}
    result = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "results": found}
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
