"""Reinforcement learning of a game with TRL's synchronous GRPO trainer, in one process.

    python examples/trl_sync_grpo.py --model MODEL --store runs/sync

The trainer's own model generates the responses, which suits small models; trl_async_grpo.py uses
vLLM. MODEL is the output of trl_sft.py, or any chat model. --cpu trains on a CPU, in float32.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from guess import SPEC, tasks


def settings(given: argparse.Namespace) -> Any:
    """Return the trainer's settings."""
    from trl import GRPOConfig

    return GRPOConfig(
        str(given.out),
        max_steps=given.steps,
        num_generations=8,
        per_device_train_batch_size=8,
        max_completion_length=512,
        learning_rate=1e-6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
        use_cpu=given.cpu,
        bf16=not given.cpu,
    )


def train(given: argparse.Namespace) -> None:
    """Train, save the model, and print how many sessions were left out."""
    from transformers import AutoTokenizer

    from trajgym.adapters.trl import GRPORollouts, StepGRPOTrainer

    with GRPORollouts(SPEC, tasks(64), given.store, deriver="gigpo", max_tokens=16) as rollouts:
        trainer = StepGRPOTrainer(
            model=given.model,
            reward_funcs=rollouts.reward_funcs,
            args=settings(given),
            train_dataset=rollouts.train_dataset,
            processing_class=AutoTokenizer.from_pretrained(given.model),
            rollout_func=rollouts.rollout_func,
            parity_tolerance=0.01 if given.cpu else None,
        )
        trainer.train()
        trainer.save_model(str(given.out))
        print(f"trained {trainer.state.global_step} steps; left out: {dict(rollouts.left)}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--store", type=Path, default=Path("runs/sync"))
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cpu", action="store_true")
    return parser


if __name__ == "__main__":
    train(parser().parse_args())
