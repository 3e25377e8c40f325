"""What every trainer has to compute, in the fewest lines: the gradient of the clipped objective.

    L = - sum_t w_t min(u_t A_t, clip(u_t, 1 - e, 1 + e) A_t) / (number of trained tokens)

coupled: u = p_theta / p_behaviour, w = 1. decoupled (arXiv 2505.24298): u = p_theta / p_prox and
w = p_prox / p_behaviour, left out above a cap; p_prox is the policy before the update.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradient.case import CAP, CLIP
from trajgym.trajectory import TrainingRow


def reference(model: Any, rows: list[TrainingRow], *, decoupled: bool = False) -> dict[str, Any]:
    """Return the gradient by parameter."""
    losses = [_loss(model, row, decoupled=decoupled) for row in rows]
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    (sum(losses) / tokens).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _loss(model: Any, row: TrainingRow, *, decoupled: bool) -> Any:
    import torch

    ids = torch.tensor(row.input_ids[None].astype(np.int64))
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
    now = logprobs.gather(1, ids[0, 1:, None])[:, 0]
    assert row.advantage is not None
    advantage = torch.tensor(row.advantage[1:])
    behaviour, mask = torch.tensor(row.logprobs[1:]), torch.tensor(row.loss_mask[1:])
    before = now.detach() if decoupled else behaviour
    weight = (before - behaviour).exp()
    weight = torch.where(weight <= CAP, weight, 0.0)
    ratio = (now - before).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return -(weight * gain)[mask].sum()
