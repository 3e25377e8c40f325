"""verl's policy loss over every family of advantages, compared with a reference token by token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.adapters.test_group_rows import sealed
from tests.gradient import families
from tests.gradient.settings import Setting, settings
from trajgym.adapters import group_rows
from trajgym.adapters.verl._denominators import (
    AGGREGATIONS,
    aggregation_of,
    scales,
    session_factors,
)
from trajgym.adapters.verl._rows import split
from trajgym.trajectory import Outcome

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
    from verl.workers.config.actor import PolicyLossConfig

    made = ActorConfig(
        strategy="fsdp",
        policy_loss=PolicyLossConfig(dro_beta=0.1),
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


def test_every_loss_of_verl_is_weighted_by_session_or_reported() -> None:
    """Factors on advantages scale exactly the losses that we say they scale, token by token."""
    import torch
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn

    mask, before = torch.ones(2, 6), torch.linspace(-2, -1, 12).reshape(2, 6)
    moves = torch.linspace(-0.5, 0.5, 12).reshape(2, 6)
    values = torch.tensor([[1.0, -1.0, 0.5, 2.0, -0.3, 1.0], [0.4, 1.0, -2.0, 1.0, 0.1, -1.0]])

    def found(loss: str, factors: Any) -> Any:
        now = (before + moves).requires_grad_()
        total, _ = get_policy_loss_fn(loss)(
            old_log_prob=before,
            log_prob=now,
            advantages=values * factors,
            response_mask=mask,
            loss_agg_mode="seq-mean-token-sum",
            config=config(2),
        )
        total.backward()
        return now.grad

    factors = torch.tensor([[2.0], [0.5]])
    sampling = {"clip_cov", "kl_cov"}  # they choose tokens by the advantages of the whole batch
    for loss in set(POLICY_LOSS_REGISTRY) - sampling - {"bypass_mode"}:
        scaled = torch.allclose(found(loss, factors), found(loss, 1.0) * factors, atol=1e-6)
        by_token = loss not in {"gspo", "geo_mean"}  # reported as ratio-of-rows
        assert (scaled and by_token) == scales(loss), loss


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


def test_weights_of_whole_rows_change_the_gradient() -> None:
    """What lint reports: the product of a long row's ratios is 0, that of its tokens is not."""
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    before, mask = torch.full((1, 400), -1.0), torch.ones(1, 400)
    weights = {}
    for level in ("token", "sequence"):
        found, _, _ = compute_rollout_correction_and_rejection_mask(
            old_log_prob=before - 0.1,
            rollout_log_prob=before,
            response_mask=mask,
            rollout_is=level,
            rollout_is_threshold=2.0,
        )
        weights[level] = found.batch["rollout_is_weights"]
    torch.testing.assert_close(weights["token"], torch.full((1, 400), float(np.exp(-0.1))))
    assert float(weights["sequence"].max()) < 1e-6


def test_a_filter_of_groups_leaves_out_groups_with_advantages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lint reports: verl's replay buffer evicts a group whose turns would be trained."""
    from verl.trainer.ppo.v1 import replay_buffer

    given = sealed()
    for tree in given.sessions:
        tree.attempts[0].outcome = Outcome(score=1.0, passed=True)
    assert any(row.advantage.any() for row in group_rows(given, "next_state_votes").rows)  # type: ignore[union-attr]
    extra = {"reward_extra_info": {"trajgym_score": 1.0}}
    monkeypatch.setattr(replay_buffer.tq, "kv_batch_get", lambda **_: {"extra_fields": [extra] * 4})
    buffer = replay_buffer.ReplayBuffer(
        "sync",
        {},
        None,
        "drop",
        {},
        refill_fn=lambda n: n,
        filter_groups_metric="trajgym_score",
        train_batch_size=1,
        gen_batch_size=1,
    )
    buffer.finished_keys["train"] = {"u"}
    buffer.partitions["train"] = {f"u_{i}_0": {} for i in range(4)}
    assert buffer._dapo_filtered_keys("train")[0] == {"u"}


def test_a_reward_model_replaces_the_rewards_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lint reports: verl writes a colocated reward model's scores over ours."""
    import torch
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.v1 import trainer_base

    ids = torch.nested.as_nested_tensor([torch.tensor([1, 2, 3])], layout=torch.jagged)
    written: dict[str, Any] = {"rm_scores": torch.tensor([[0.25, 0.0, 1.0]])}
    columns = {"prompts": ids, "responses": ids, "raw_prompt": [[]]}
    queue = SimpleNamespace(
        kv_batch_get=lambda **_: columns,
        kv_batch_put=lambda *, fields, **_: written.update(fields.items()),
    )
    monkeypatch.setattr(trainer_base, "tq", queue)
    scores = TensorDict({"rm_scores": torch.tensor([[0.0, 0.0, 0.5]])}, batch_size=1)

    class Batch(SimpleNamespace):
        def __len__(self) -> int:
            return 1

    trainer = SimpleNamespace(
        tokenizer=SimpleNamespace(pad_token_id=0),
        reward_loop_manager=SimpleNamespace(compute_rm_score=lambda _: DataProto(batch=scores)),
        _lengths_to_mask=trainer_base.PPOTrainer._lengths_to_mask,
    )
    trainer_base.PPOTrainer._compute_reward_colocate(trainer, Batch(keys=["k"], partition_id="p"))
    assert written["rm_scores"][0].tolist() == [0.0, 0.0, 0.5]


def test_every_setting_that_changes_the_gradient_has_a_test() -> None:
    """The tests above are those of the table in docs/settings.md."""
    names = {one.name for one in settings("verl", "gradient")}
    assert names == {"loss_mode", "use_kl_in_reward", "rollout_is", "filter_groups", "enable"}


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
