"""AReaL's side: one update of its FSDP actor. Run as a module: folder, file, objective."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.gradient.case import CAP, CLIP, load, save


def main(folder: Path, out: Path, objective: str) -> None:
    """Write the gradient that the actor used."""
    from trajgym.adapters.areal import areal_tensors

    case = load(folder)
    # Without flash attention, sequences of one micro-batch would see each other.
    batches = 1 if objective == "packed" else len(case.rows)
    actor = make_actor(folder / "model", decoupled=objective == "decoupled", batches=batches)
    by_group: dict[str, list[Any]] = {}
    for row in case.rows:
        by_group.setdefault(row.group or row.session, []).append(row)
    batch = [areal_tensors(rows) for rows in by_group.values()]
    if objective == "decoupled":
        for trajectory, logprobs in zip(batch, actor.compute_logp(batch), strict=True):
            trajectory["prox_logp"] = logprobs
    actor.ppo_update(actor.compute_advantages(batch))
    save(gradient_of(actor), out)
    actor.destroy()


def make_actor(model: Path, *, decoupled: bool, batches: int, **options: Any) -> Any:
    """Return AReaL's actor for one process on gloo, one optimizer step for each update."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    from areal.api import FinetuneSpec
    from areal.api.cli_args import (
        MicroBatchSpec,
        OptimizerConfig,
        PPOActorConfig,
        RejectionSamplingConfig,
    )
    from areal.engine.fsdp_engine import FSDPPPOActor

    rejection = RejectionSamplingConfig(level="token", action="mask", metric="ratio", upper=CAP)
    settings: dict[str, Any] = {
        "experiment_name": "e",
        "trial_name": "t",
        "path": str(model),
        "attn_impl": "sdpa",
        "dtype": "float32",
        "backend": "fsdp:d1",
        "optimizer": OptimizerConfig(
            lr=1e-3, lr_scheduler_type="constant", gradient_clipping=1e9, warmup_steps_proportion=0
        ),
        "ppo_n_minibatches": 1,
        "use_decoupled_loss": decoupled,
        "prox_logp_method": "recompute",
        "rejection_sampling": rejection if decoupled else None,
        "recompute_logprob": decoupled,
        "adv_norm": None,
        "reward_norm": None,
        "kl_ctl": 0.0,
        "eps_clip": CLIP,
        "mb_spec": MicroBatchSpec(n_mbs=batches, max_tokens_per_mb=1 << 20),
        "gradient_checkpointing": False,
        **options,
    }
    actor = FSDPPPOActor(PPOActorConfig(**settings))
    actor.create_process_group()
    actor.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=64, train_batch_size=4))
    return actor


def gradient_of(actor: Any) -> dict[str, Any]:
    """Return the gradient of the last step by parameter."""
    return {
        name: parameter.grad.full_tensor()
        for name, parameter in actor.model.named_parameters()
        if parameter.grad is not None
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
