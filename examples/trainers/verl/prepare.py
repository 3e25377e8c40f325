"""Write the tasks as data for verl.

PYTHONPATH=examples/trainers/shared python examples/trainers/verl/prepare.py --out data --updates 60
"""

from __future__ import annotations

import argparse
from pathlib import Path

from small_swe import GROUPS, SPEC, tasks

from trajgym.adapters.verl import write_prompts


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # An asynchronous trainer begins tasks before the last update, and drops some of them.
    chosen = tasks(options.updates * GROUPS * 2)
    write_prompts(options.out / "train.parquet", chosen, SPEC, agent="recorded")
    write_prompts(options.out / "val.parquet", chosen[:GROUPS], SPEC, split="val", agent="recorded")
    print(f"{len(chosen)} tasks in {options.out / 'train.parquet'}")


if __name__ == "__main__":
    main()
