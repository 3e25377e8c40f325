"""verl's policy loss over every family of advantages, compared with a reference token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gradient import families
from tests.gradient.settings import Setting, settings
from trajgym.adapters.verl._denominators import AGGREGATIONS, aggregation_of, session_factors
from trajgym.adapters.verl._rows import split

pytestmark = pytest.mark.timeout(900)
MEANS = {
    "token-mean": "tokens",
    "token-sum": "sum",
    "seq-mean-token-sum": "sessions",
    "seq-mean-token-sum-norm": "sessions/length",
    "seq-mean-token-mean": "sessions of means",
}
NORM = 8


def config(rows: int) -> Any:
    from verl.workers.config import ActorConfig

    made = ActorConfig(
        strategy="fsdp",
        clip_ratio=families.CLIP,
        clip_ratio_low=families.CLIP,
        clip_ratio_high=families.CLIP,
        clip_ratio_c=1e9,
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        loss_scale_factor=NORM,
    )
    made.global_batch_info.update(
        dp_size=1, batch_num_tokens=None, global_batch_size=rows, loss_scale_factor=NORM
    )
    return made


def soft(ratio: Any, advantage: Any) -> Any:
    """SAPO: a sigmoid in place of the clip."""
    temperature = np.where(advantage > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-temperature * (ratio - 1)))
    return -4 * gate * (1 - gate) * ratio * advantage


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("loss", ["vanilla", "sapo"])
def test_the_gradient_is_the_references(loss: str, mode: str, family: str) -> None:
    """With two padding rows in the batch, and a session of two rows that counts once."""
    _, _, rows = families.derived(family)
    found = gradient(rows, loss, mode)
    slope = soft if loss == "sapo" else families.clipped
    wanted = families.reference(rows, MEANS[aggregation_of(loss, mode)], slope, NORM)
    for row, got, one in zip(rows, found, wanted, strict=False):
        size = split(row).response.size
        np.testing.assert_allclose(got[:size], one[-size:], atol=1e-6)
    assert not found[-2:].any()
    assert any(one.any() for one in wanted)


@pytest.mark.parametrize(
    "setting",
    [one for one in settings("verl", "gradient") if one.name == "loss_mode"],
    ids=lambda one: str(one.value),
)
def test_a_loss_that_lint_reports_has_another_gradient(setting: Setting) -> None:
    """Losses with one ratio for each row don't train the tokens' advantages as they are."""
    _, _, rows = families.derived("spans")
    plain = gradient(rows, "vanilla", "token-mean")
    assert np.abs(gradient(rows, setting.value, "token-mean") - plain).max() > 1e-4


def test_kl_in_the_reward_changes_given_advantages() -> None:
    """What lint reports: verl subtracts the KL from rm_scores, which hold advantages here."""
    import torch
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    from trajgym.adapters.verl import given_advantages

    scores, mask = torch.tensor([[1.0, -0.5]]), torch.ones(1, 2)
    fields = {"token_level_scores": scores, "response_mask": mask}
    fields |= {"old_log_probs": torch.zeros(1, 2), "ref_log_prob": torch.full((1, 2), -1.0)}
    data = DataProto(batch=TensorDict(fields, batch_size=1))
    data, _ = apply_kl_penalty(data, kl_ctrl=FixedKLController(0.1))
    bent, _ = given_advantages(data.batch["token_level_rewards"], mask)
    assert not torch.allclose(bent, given_advantages(scores, mask)[0])


def gradient(rows: list[Any], loss_mode: str, mode: str) -> np.ndarray:
    """Return the gradient of verl's loss by the log-probs of responses, two fillers last."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    parts = [split(row) for row in rows]
    shape = (len(rows) + 2, max(one.response.size for one in parts))
    mask, values, before, ratios = (np.zeros(shape) for _ in range(4))
    names: list[str | None] = [*(row.session for row in rows), None, None]
    tokens = [*(int(one.mask.sum()) for one in parts), 0, 0]
    factors = session_factors(aggregation_of(loss_mode, mode), names, tokens)
    for i, (row, one) in enumerate(zip(rows, parts, strict=True)):
        size = one.response.size
        mask[i, :size] = one.mask
        values[i, :size] = one.advantages * factors[i]
        before[i, :size] = one.logprobs
        ratios[i, :size] = families.log_ratios(row)[-size:]
    # verl makes padding rows by copying a real one and masking it.
    values[-2:], before[-2:] = values[0], before[0]
    now = torch.from_numpy(before + ratios).requires_grad_()
    loss, _ = get_policy_loss_fn(loss_mode)(
        old_log_prob=torch.from_numpy(before),
        log_prob=now,
        advantages=torch.from_numpy(values),
        response_mask=torch.from_numpy(mask),
        loss_agg_mode=mode,
        config=config(len(names)),
    )
    loss.backward()
    assert now.grad is not None
    return np.asarray(now.grad)
