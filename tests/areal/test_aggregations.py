"""AReaL's loss over every family of advantages, compared with a reference token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.areal.test_tensors import actor
from tests.gradient import families
from tests.gradient.settings import Setting, settings
from trajgym.adapters import RowBuilder
from trajgym.adapters.areal import areal_tensors
from trajgym.rewards import Rewards

pytestmark = pytest.mark.timeout(900)


def soft(ratio: Any, advantage: Any) -> Any:
    """SAPO: a sigmoid in place of the clip."""
    temperature = np.where(advantage > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-temperature * (ratio - 1)))
    return -4 * gate * (1 - gate) * ratio * advantage


def gradient(
    rows: list[Any],
    own: dict[str, Any] | None = None,
    *,
    dense: bool | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Return the gradient of AReaL's loss by each log-prob, in AReaL's places.

    Args:
        rows: with values.
        own: settings of ``PPOActorConfig``.
        dense: form of the rows.
        **options: of the loss.
    """
    import torch
    from areal.trainer.ppo.actor import grpo_loss_fn

    (made,) = actor(**(own or {})).compute_advantages([areal_tensors(rows, dense=dense)])
    behaviour = torch.zeros_like(made["logprobs"])
    ratios = torch.zeros_like(behaviour)
    for i, row in enumerate(rows):
        behaviour[i, : len(row) - 1] = torch.from_numpy(row.logprobs[1:])
        ratios[i, : len(row) - 1] = torch.from_numpy(families.log_ratios(row)[1:])
    now = (behaviour + ratios).requires_grad_()
    data = {**made, "logprobs": behaviour, "prox_logp": behaviour}
    loss = grpo_loss_fn(
        now, torch.zeros_like(now), data, eps_clip=families.CLIP, eps_clip_higher=None, **options
    )
    loss.backward()
    assert now.grad is not None
    return [now.grad[i].numpy() for i in range(len(rows))]


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("loss", ["ppo", "sapo"])
def test_the_gradient_is_the_references(loss: str, family: str) -> None:
    """Without the failed member; a session of two rows counts by its tokens."""
    _, _, rows = families.derived(family)
    found = gradient(rows, c_clip=None, use_sapo_loss=loss == "sapo")
    wanted = families.reference(rows, "tokens", soft if loss == "sapo" else families.clipped)
    for row, got, one in zip(rows, found, wanted, strict=True):
        np.testing.assert_allclose(got[: len(row) - 1], one[1:], atol=1e-6)
        assert not got[len(row) - 1 :].any()
    assert any(one.any() for one in wanted)


SETTINGS = settings("areal", "gradient")
OF_LOSS = {"recompute_logprob", "rejection_sampling", "prox_logp_method"}
"""Settings that act on log-probs in the loss; the others act on rewards and advantages."""


@pytest.mark.parametrize(
    "setting",
    [one for one in SETTINGS if one.name not in OF_LOSS],
    ids=lambda one: f"{one.name}-{one.code}",
)
def test_a_setting_that_lint_reports_changes_the_gradient(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting listed in docs/settings.md as changing the gradient changes it."""
    from areal.api.cli_args import NormConfig

    name, value = setting.name, setting.value
    # What reshapes rewards shows on rewards, everything else on advantages.
    dense: bool | None = True if name.startswith("reward_") or name == "discount" else None
    of_rewards = bool(dense) or setting.code == "bent-reward"
    rows = _rewarded() if of_rewards else families.derived("spans")[2]
    plain = gradient(rows, c_clip=None, dense=dense)
    own: dict[str, Any] = {name: NormConfig(**value) if name.endswith("_norm") else value}
    of_loss: dict[str, Any] = {}
    if name == "importance_sampling_level":
        own, of_loss = {}, own
    elif name == "overlong_reward_penalty":
        own |= {"overlong_tokens": 4, "overlong_penalty_factor": 1.0, "max_new_tokens": 8}
    elif setting.given or name == "critic":  # what the trainer adds to the rows
        column = "values" if name == "critic" else "ref_logp"
        own = {} if name == "critic" else own
        tensors = areal_tensors

        def with_column(*args: Any, **options: Any) -> dict[str, Any]:
            made = tensors(*args, **options)
            return {**made, column: -0.5 * made["loss_mask"].float()}

        monkeypatch.setattr("tests.areal.test_aggregations.areal_tensors", with_column)
    bent = gradient(rows, own, c_clip=None, dense=dense, **of_loss)
    assert max(np.abs(a - b).max() for a, b in zip(plain, bent, strict=True)) > 1e-4


def test_a_replaced_behaviour_policy_changes_the_gradient() -> None:
    """`recompute_logprob` without the decoupled loss: every ratio of the first update is 1."""
    recorded = _loss_of_stale_rows({"use_decoupled_loss": False})
    replaced = _loss_of_stale_rows({"use_decoupled_loss": False, "recompute_logprob": True})
    assert np.abs(recorded - replaced).max() > 1e-3


def test_a_missing_behaviour_weight_changes_the_gradient() -> None:
    """The decoupled loss without `rejection_sampling` has no weight for stale tokens."""
    from areal.api.cli_args import RejectionSamplingConfig

    limit = RejectionSamplingConfig(level="token", action="mask", metric="ratio", upper=5.0)
    weighted = _loss_of_stale_rows({}, rejection_sampling=limit, use_decoupled_loss=True)
    missing = _loss_of_stale_rows({}, rejection_sampling=None, use_decoupled_loss=True)
    assert np.abs(weighted - missing).max() > 1e-3


def test_loglinear_reads_versions_that_are_shifted() -> None:
    """The first token of a turn is taken for one that was not sampled."""
    newest = max(int(row.version_low.max()) for row in families.derived("spans")[2])
    options: dict[str, Any] = {"prox_logp_method": "loglinear", "current_version": newest + 3}
    options["use_decoupled_loss"] = True
    as_read = _loss_of_stale_rows({}, prox=False, **options)
    right = _loss_of_stale_rows({}, prox=False, shift_versions=True, **options)
    assert np.abs(as_read - right).max() > 1e-3


def test_every_setting_of_the_loss_has_a_test() -> None:
    """The names above are those of the table."""
    assert {one.name for one in SETTINGS} >= OF_LOSS


def _loss_of_stale_rows(
    own: dict[str, Any], *, prox: bool = True, shift_versions: bool = False, **options: Any
) -> np.ndarray:
    """Return the gradient of AReaL's loss by the log-probs of rows from older weights.

    Args:
        own: settings of ``PPOActorConfig``.
        prox: whether the trainer has recomputed the log-probs.
        shift_versions: whether versions are aligned with log-probs, which AReaL does not do.
        **options: of the loss.
    """
    import torch
    from areal.trainer.ppo.actor import grpo_loss_fn

    rows = families.derived("spans")[2]
    tensors = areal_tensors(rows)
    moved = torch.zeros_like(tensors["logprobs"])
    for i, row in enumerate(rows):
        moved[i, : len(row) - 1] = torch.from_numpy(0.5 * families.log_ratios(row)[1:])
    recomputed = torch.roll(tensors["logprobs"], -1, dims=-1) + moved
    if prox:
        tensors["prox_logp"] = recomputed.clone()
    (made,) = actor(**own).compute_advantages([tensors])
    if shift_versions:
        made["versions"] = torch.roll(made["versions"], -1, dims=-1)
    now = recomputed.clone().requires_grad_()
    loss = grpo_loss_fn(
        now,
        torch.zeros_like(now),
        made,
        eps_clip=families.CLIP,
        eps_clip_higher=None,
        c_clip=None,
        **options,
    )
    loss.backward()
    assert now.grad is not None
    return np.asarray(now.grad)


def _rewarded() -> list[Any]:
    """Rows with rewards on turns, the last of which are large."""
    build = RowBuilder(["outcome", {"name": "tool_calls", "weight": 0.5}], "a loss", kind=Rewards)
    return build(families.group()).rows
