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


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one.name}-{one.code}")
def test_a_setting_that_lint_reports_changes_the_gradient(setting: Setting) -> None:
    """Each setting listed in docs/settings.md as changing the gradient changes it."""
    from areal.api.cli_args import NormConfig

    name, value = setting.name, setting.value
    # What reshapes rewards shows on rewards, everything else on advantages.
    dense = True if name.startswith("reward_") or name == "discount" else None
    rows = _rewarded() if dense else families.derived("spans")[2]
    if isinstance(value, dict):
        value = NormConfig(**value)
    of_loss = {name: value} if name == "importance_sampling_level" else {}
    own = {} if of_loss else {name: value}
    plain = gradient(rows, c_clip=None, dense=dense)
    bent = gradient(rows, own, c_clip=None, dense=dense, **of_loss)
    assert max(np.abs(a - b).max() for a, b in zip(plain, bent, strict=True)) > 1e-4


def _rewarded() -> list[Any]:
    """Rows with rewards on turns, the last of which are large."""
    build = RowBuilder(["outcome", {"name": "tool_calls", "weight": 0.5}], "a loss", kind=Rewards)
    return build(families.group()).rows
