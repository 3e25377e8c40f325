"""Time to import the three core packages in a new interpreter, compared with their libraries.

Bytecode files are kept, as for an installed package; without them, every start would compile again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

CORE = "import trajgym.envs, trajgym.trajectory, trajgym.rewards"
GOAL = 0.3


def seconds(statement: str, runs: int) -> float:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    samples = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, env=env)
        samples.append(time.perf_counter() - started)
    return statistics.median(samples[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    bare = seconds("pass", runs)
    for name, statement in (
        ("numpy", "import numpy"),
        ("pydantic", "import pydantic; pydantic.BaseModel"),
        ("all three libs", "import numpy, pydantic, asyncio; pydantic.BaseModel"),
        ("trajgym core", CORE),
    ):
        taken = seconds(statement, runs) - bare
        print(f"{name:14} {taken:6.3f} s   {taken / GOAL:5.2f} x the goal of {GOAL} s")
    print(f"{'interpreter':14} {bare:6.3f} s   (already subtracted from the others)")


if __name__ == "__main__":
    main()
