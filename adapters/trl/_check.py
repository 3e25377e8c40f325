"""Checks of a synchronous TRL trainer before training."""

from __future__ import annotations

from typing import Any

from trajgym.adapters.trl._lint import lint_trl
from trajgym.trajectory import InvalidInput

__all__ = ["check_trainer"]

_BY_ROW = {"ratio-of-rows"}
"""Findings that do no harm if all tokens of a row have one advantage."""


def check_trainer(trainer: Any) -> None:
    """Refuse a ``GRPOTrainer`` whose settings silently change or prevent training.

    ``StepGRPOTrainer`` calls this function. With ``environment_factory`` and a plain
    ``GRPOTrainer``, call it before ``train()``.

    Raises:
        InvalidInput: there are fewer tasks than prompts in a batch (TRL then returns after 0
            steps), or ``trajgym lint trl`` reports a setting.
    """
    args, dataset = trainer.args, trainer.train_dataset
    if dataset is not None and hasattr(dataset, "__len__"):
        needed = max(1, args.generation_batch_size // trainer.num_generations)
        if len(dataset) < needed:
            raise InvalidInput(
                f"there are {len(dataset)} tasks, but a batch takes {needed} prompts "
                f"(generation_batch_size {args.generation_batch_size}, num_generations "
                f"{trainer.num_generations}): TRL would end after 0 steps; pass more tasks, or "
                "set generation_batch_size to num_generations",
            )
    found = [one for one in lint_trl(vars(args), []) if one.code not in _BY_ROW]
    if found:
        first = found[0]
        raise InvalidInput(f"{first.where} {first.problem}; {first.fix}")
