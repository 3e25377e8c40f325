"""verl's side: its policy loss over exported rows. Run as a module: folder, file, objective."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.gradient.case import CAP, CLIP, Case, load, save

DUAL_CLIP = 1e9
"""verl clips twice: where the advantage is negative, the loss is bounded. Out of reach here."""


def main(folder: Path, out: Path, objective: str) -> None:
    """Write the gradient of verl's loss."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    case = load(folder)
    batch = _batch(case)
    model = case.model()
    now = _logprobs(model, batch)
    behaviour, before, weights = batch["rollout_log_probs"], batch["rollout_log_probs"], None
    if objective == "decoupled":
        before = now.detach()
        weights = (before - behaviour).exp()
        weights = torch.where(weights <= CAP, weights, 0.0)
    config = ActorConfig(
        strategy="fsdp",
        clip_ratio=CLIP,
        clip_ratio_low=CLIP,
        clip_ratio_high=CLIP,
        clip_ratio_c=3.0 if objective == "default" else DUAL_CLIP,
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
    )
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=before,
        log_prob=now,
        advantages=batch["advantages"],
        response_mask=batch["response_mask"],
        loss_agg_mode="token-mean",
        config=config,
        rollout_is_weights=weights,
    )
    loss.backward()
    save({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, out)


def _batch(case: Case) -> dict[str, Any]:
    """Return the exported rows as verl pads them: prompts on the left, responses on the right."""
    import pyarrow.parquet as pq
    import torch

    from trajgym.adapters import export
    from trajgym.rewards import OutcomeReward

    rewards = OutcomeReward().derive(case.values.table)
    with tempfile.TemporaryDirectory() as work:
        export("verl", case.trees, case.groups, Path(work), values=[rewards, case.values])
        rows = pq.read_table(Path(work) / "verl.parquet").to_pylist()
    prompt = max(len(row["prompts"]) for row in rows)
    width = max(len(row["responses"]) for row in rows)
    ids = np.zeros((len(rows), prompt + width), dtype=np.int64)
    seen = np.zeros_like(ids)
    placed = {
        name: np.zeros((len(rows), width), dtype=np.float32)
        for name in ("response_mask", "rollout_log_probs", "advantages")
    }
    for i, row in enumerate(rows):
        start, end = prompt - len(row["prompts"]), prompt + len(row["responses"])
        ids[i, start:end] = row["prompts"] + row["responses"]
        seen[i, start:end] = 1
        for name, array in placed.items():
            array[i, : len(row["responses"])] = row[name]
    positions = np.maximum(seen.cumsum(1) - 1, 0)
    arrays = {"input_ids": ids, "attention_mask": seen, "position_ids": positions, **placed}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _logprobs(model: Any, batch: dict[str, Any]) -> Any:
    """Return the log-probs of the responses, as verl's actor slices them."""
    from verl.utils.torch_functional import logprobs_from_logits

    given = ("input_ids", "attention_mask", "position_ids")
    logits = model(**{name: batch[name] for name in given}, use_cache=False).logits
    width = batch["response_mask"].shape[1]
    return logprobs_from_logits(
        logits[:, -width - 1 : -1].float(), batch["input_ids"][:, -width:], inplace_backward=False
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
