"""verl's actor worker on a CPU: FSDP2 and its PPO loss, on a batch that was written for replay.

Run by torchrun: model folder, batch, file for the result.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested, response_to_nested

STEPS = 8


def worker(model: str) -> Any:
    """Return the worker that verl's trainer would start on a GPU."""
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=model,
                use_remove_padding=False,
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "sdpa"},
            ),
            engine_config=FSDPEngineConfig(
                forward_only=False,
                fsdp_size=1,
                strategy="fsdp2",
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=4,
                infer_micro_batch_size_per_gpu=4,
                model_dtype="fp32",
                dtype="float32",
                mixed_precision={
                    "param_dtype": "fp32",
                    "reduce_dtype": "fp32",
                    "buffer_dtype": "fp32",
                },
            ),
            optimizer_config=FSDPOptimizerConfig(
                lr=1e-3, total_training_steps=10, lr_warmup_steps=0, weight_decay=0.0
            ),
            checkpoint_config=None,
        ),
    )
    made.reset()
    return made


def fields(batch: Any, *names: str) -> Any:
    """Return a copy of a batch's ids and what else the engine needs."""
    wanted = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
    return batch.select(*wanted, *names).clone()


def logprobs(actor: Any, batch: Any) -> Any:
    """Return the actor's log-probs of the responses, padded."""
    data = fields(batch)
    tu.assign_non_tensor(data, temperature=1.0, calculate_entropy=True, compute_loss=False)
    out = tu.get(actor.infer_batch(data), "log_probs")
    return response_from_nested(out, batch["response_mask"]).to_padded_tensor(0.0).float()


def main(model: str, source: str, result: str) -> None:
    """Train, and write how far each row's turns moved."""
    batch = torch.load(source, weights_only=False)["tensordict"]
    actor = worker(model)
    mask = batch["response_mask"].to_padded_tensor(0).float()
    before = logprobs(actor, batch)
    recorded = batch["rollout_log_probs"].to_padded_tensor(0.0)
    advantages, _ = get_adv_estimator_fn("trajgym")(
        token_level_rewards=batch["rm_scores"].to_padded_tensor(0.0), response_mask=mask
    )
    batch["advantages"] = response_to_nested(advantages, batch["response_mask"])
    batch["old_log_probs"] = batch["rollout_log_probs"]
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_mini_batch_size=len(mask), ppo_micro_batch_size_per_gpu=4
    )
    actor.set_loss_fn(partial(ppo_loss, config=config))
    for _ in range(STEPS):
        data = fields(batch, "advantages", "old_log_probs")
        tu.assign_non_tensor(
            data, temperature=1.0, global_batch_size=len(mask), calculate_entropy=True
        )
        actor.train_batch(data)
    moved = (logprobs(actor, batch) - before) * mask
    Path(result).write_text(
        json.dumps(
            {
                "gap": float(((before - recorded).abs() * mask).max()),
                "moved": moved.tolist(),
                "advantages": advantages.tolist(),
                "mask": mask.tolist(),
            },
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
