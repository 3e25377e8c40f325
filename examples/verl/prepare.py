"""Write tasks of the guessing game as data for verl.

    PYTHONPATH=examples python examples/verl/prepare.py --out data

Then train, on a machine with GPUs and vLLM (sync, colocate_async or separate_async):

    PYTHONPATH=examples python -m verl.trainer.main_ppo \
        --config-path=$PWD/examples/verl --config-name=sync \
        actor_rollout_ref.model.path=MODEL
"""

from __future__ import annotations

import argparse
from pathlib import Path

from guess import tasks

from trajgym.adapters.verl import write_prompts
from trajgym.envs import EnvSpec

GAME = EnvSpec(id="guess:Guess")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--games", type=int, default=512)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    games = tasks(options.games + 32)
    write_prompts(options.out / "train.parquet", games[:-32], GAME)
    write_prompts(options.out / "val.parquet", games[-32:], GAME, split="val")
    print(f"{options.games} games in {options.out / 'train.parquet'}, 32 in val.parquet")


if __name__ == "__main__":
    main()
