"""verl's loss aggregations over rows, weighted so that sessions count once and fillers never."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trajgym.adapters.verl._denominators import AGGREGATIONS, session_factors
from trajgym.trajectory import InvalidInput

ROWS: list[tuple[str | None, int]] = [("a", 3), ("b", 5), ("b", 1), ("c", 2), (None, 0), (None, 0)]
"""Sessions of one row, of two rows, and two fillers: trained tokens of each."""
WIDTH = 5


def gradient(mode: str, rows: list[tuple[str | None, int]], divisor: int, *, weigh: bool) -> Any:
    """Return what verl's policy loss sends back to each token's log-prob."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    rng = np.random.default_rng(7)
    mask = torch.zeros(len(rows), WIDTH)
    for place, (_, size) in zip(mask, rows, strict=True):
        place[:size] = 1
    values = {None: 0.0, "a": 1.0, "b": -0.5, "c": 2.0}
    factors = [1.0] * len(rows)
    if weigh:
        names, tokens = [name for name, _ in rows], [size for _, size in rows]
        factors = session_factors(mode, names, tokens, divisor=divisor)
    advantages = torch.tensor(
        [[values[name] * factor] * WIDTH for (name, _), factor in zip(rows, factors, strict=True)]
    )
    before = torch.tensor(rng.normal(-1, 0.2, (6, WIDTH)), dtype=torch.float32)[: len(rows)]
    now = (before + 0.01).requires_grad_()
    config = ActorConfig(
        strategy="fsdp",
        clip_ratio=0.2,
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        loss_scale_factor=8,
    )
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=None, global_batch_size=divisor, loss_scale_factor=8
    )
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=before,
        log_prob=now,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
    )
    loss.backward()
    assert now.grad is not None
    return now.grad.numpy()


def reference(mode: str) -> Any:
    """The gradient if each session counts once, whatever its rows, and there are no fillers."""
    values = {"a": 1.0, "b": -0.5, "c": 2.0}
    tokens = {"a": 3, "b": 6, "c": 2}
    found = np.zeros((len(ROWS), WIDTH))
    for place, (name, size) in zip(found, ROWS, strict=True):
        if name is None:
            continue
        share = {
            "token-mean": 1 / 11,
            "token-sum": 1.0,
            "seq-mean-token-sum": 1 / 3,
            "seq-mean-token-sum-norm": 1 / 3 / 8,
            "seq-mean-token-mean": 1 / 3 / tokens[name],
        }[mode]
        place[:size] = -values[name] * share * np.exp(0.01)
    return found


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_every_aggregation_counts_sessions(mode: str) -> None:
    """With the factors, verl's own loss has the reference's gradient in each of its modes."""
    found = gradient(mode, ROWS, len(ROWS), weigh=True)
    np.testing.assert_allclose(found, reference(mode), atol=1e-6)
    if mode.startswith("seq-mean"):
        plain = gradient(mode, ROWS, len(ROWS), weigh=False)
        assert np.abs(plain - reference(mode)).max() > 0.01 / 8


def test_an_unknown_aggregation_is_refused() -> None:
    """A mode that verl does not have is named."""
    with pytest.raises(InvalidInput, match="token-median"):
        session_factors("token-median", ["a"], [1])
