"""Every setting of verl's trainers is in docs/settings.md, or listed with the reason why not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tests.gradient.reviewed import known


def names(section: str, kind: Any) -> set[str]:
    return {f"{section}.{one.name}" for one in fields(kind) if not one.name.startswith("_")}


def test_every_setting_is_reviewed() -> None:
    """A setting that a new version of verl adds is noticed, and one that it removes."""
    from verl.trainer.config.algorithm import AlgoConfig, RolloutCorrectionConfig
    from verl.workers.config import FSDPActorConfig, RolloutConfig
    from verl.workers.config.actor import PolicyLossConfig

    own = names("actor", FSDPActorConfig) | names("actor.policy_loss", PolicyLossConfig)
    own |= names("rollout", RolloutConfig) | names("algorithm", AlgoConfig)
    own |= names("algorithm.rollout_correction", RolloutCorrectionConfig)
    # Of other sections, the table has what changes rows.
    other = {"reward.reward_model.enable", "rollout.engine_kwargs.vllm.logprobs_mode"}
    assert own | other == known("verl")
