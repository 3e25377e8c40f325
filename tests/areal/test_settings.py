"""Every setting of AReaL's trainer is in docs/settings.md, or listed with the reason why not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tests.gradient.reviewed import known


def names(section: str, kind: Any) -> set[str]:
    return {f"{section}{one.name}" for one in fields(kind)}


def test_every_setting_is_reviewed() -> None:
    """A setting that a new version of AReaL adds is noticed, and one that it removes."""
    from areal.api import cli_args

    own = names("", cli_args.GRPOConfig) | names("actor.", cli_args.PPOActorConfig)
    own |= names("gconfig.", cli_args.GenerationHyperparameters)
    own |= names("rollout.", cli_args.InferenceEngineConfig)
    assert own == known("areal")
