"""Run several arms and seeds in parallel, each in its own process, on all available GPUs.

python examples/dense/many.py --runs outcome:0,steps:0,outcome:1,steps:1 -- --model SFT ...
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path


def main(given: argparse.Namespace) -> int:
    """Start all runs, wait for them, and return how many failed."""
    import torch

    gpus = torch.cuda.device_count()
    learn = Path(__file__).with_name("learn.py")
    given.logs.mkdir(parents=True, exist_ok=True)
    started = []
    for i, run in enumerate(given.runs.split(",")):
        arm, _, seed = run.partition(":")
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        if gpus:
            env["CUDA_VISIBLE_DEVICES"] = str(i % gpus)
        line = [sys.executable, str(learn), "--arm", arm, "--seed", seed or "0", *given.rest]
        with (given.logs / f"{arm}-{seed}.log").open("w") as log:
            started.append(subprocess.Popen(line, env=env, stdout=log, stderr=subprocess.STDOUT))
        time.sleep(given.apart)
    return sum(process.wait() != 0 for process in started)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--runs", required=True, help="ARM:SEED, separated by commas")
    made.add_argument("--logs", type=Path, default=Path("logs"))
    made.add_argument("--apart", type=float, default=0.5, help="seconds between two starts")
    made.add_argument("rest", nargs="*", help="arguments of learn.py, after --")
    return made


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
