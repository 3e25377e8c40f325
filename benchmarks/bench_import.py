"""Time to import the three core packages, in a fresh interpreter, beside a bare one and numpy.

Byte code is kept, as it is where a package was installed: without it every start compiles again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

CORE = "import trajgym.envs, trajgym.trajectory, trajgym.rewards"
GOAL = 0.3


def seconds(statement: str, runs: int = 9) -> float:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    samples = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, env=env)
        samples.append(time.perf_counter() - started)
    return statistics.median(samples[1:])


def main() -> None:
    bare = seconds("pass")
    for name, statement in (
        ("numpy", "import numpy"),
        ("pydantic", "import pydantic; pydantic.BaseModel"),
        ("all three libs", "import numpy, pydantic, asyncio; pydantic.BaseModel"),
        ("trajgym core", CORE),
    ):
        taken = seconds(statement) - bare
        print(f"{name:14} {taken:6.3f} s   {taken / GOAL:5.2f} x the goal of {GOAL} s")
    print(f"{'interpreter':14} {bare:6.3f} s   (already taken off the others)")


if __name__ == "__main__":
    main()
