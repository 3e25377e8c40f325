"""Train on small SWE tasks with AReaL's asynchronous trainer.

cd examples/trainers/areal
PYTHONPATH=../shared:. python train.py \
    --config train.yaml actor.path=SFT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from small_swe import GROUPS, SAMPLES, SPEC, tasks


def arguments(config: Any) -> dict[str, Any]:
    """Return the workflow's arguments: plain data, which AReaL sends to its rollout processes."""
    from trajgym.adapters.areal import workflow_kwargs

    options = {"samples": SAMPLES, "deriver": "grpo", "session_timeout": 600.0}
    env = {"id": SPEC.id, "config": SPEC.config}
    return workflow_kwargs(config, env=env, store=str(Path("runs").absolute()), **options)


def main(argv: list[str]) -> None:
    """Train with the configuration given on the command line."""
    from areal import PPOTrainer
    from areal.api.cli_args import GRPOConfig, load_expr_config

    from trajgym.adapters.areal import task_dataset

    config, _ = load_expr_config(argv, GRPOConfig)
    chosen = tasks(2 * GROUPS * (config.total_train_steps or 60))
    with PPOTrainer(config, train_dataset=task_dataset(chosen)) as trainer:
        trainer.train(
            workflow="recorded_workflow.RecordedWorkflow", workflow_kwargs=arguments(config)
        )


if __name__ == "__main__":
    main(sys.argv[1:])
