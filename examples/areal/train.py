"""Reinforcement learning of a game with AReaL's asynchronous trainer.

    PYTHONPATH=examples python examples/areal/train.py --config examples/areal/guess.yaml \
        actor.path=MODEL

To check the configuration first:

    trajgym lint areal examples/areal/guess.yaml --set trajgym.expected_hung=0
"""

from __future__ import annotations

import sys
from typing import Any

from guess import SPEC, tasks


def arguments(config: Any) -> dict[str, Any]:
    """Return the workflow's arguments: plain data, which AReaL sends to its rollout processes."""
    from trajgym.adapters.areal import workflow_kwargs

    env = {"id": "guess:Guess", "config": SPEC.config}
    return workflow_kwargs(config, env=env, store="runs/areal", samples=8, deriver="gigpo")


def main(argv: list[str]) -> None:
    """Train with the configuration given on the command line."""
    from areal import PPOTrainer
    from areal.api.cli_args import GRPOConfig, load_expr_config

    from trajgym.adapters.areal import task_dataset

    config, _ = load_expr_config(argv, GRPOConfig)
    with PPOTrainer(config, train_dataset=task_dataset(tasks(512))) as trainer:
        trainer.train(
            workflow="trajgym.adapters.areal.TrajgymWorkflow", workflow_kwargs=arguments(config)
        )


if __name__ == "__main__":
    main(sys.argv[1:])
