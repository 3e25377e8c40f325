"""Every setting of TRL's trainers is in docs/settings.md, or listed with the reason why not."""

from __future__ import annotations

from dataclasses import fields

from tests.gradient.reviewed import known


def test_every_setting_is_reviewed() -> None:
    """A setting that a new version of TRL adds is noticed, and one that it removes."""
    from transformers import TrainingArguments
    from trl import GRPOConfig
    from trl.experimental.async_grpo import AsyncGRPOConfig

    base = {one.name for one in fields(TrainingArguments)}
    own = {one.name for kind in (GRPOConfig, AsyncGRPOConfig) for one in fields(kind)} - base
    changed = {"learning_rate", "logging_steps", "lr_scheduler_type", "remove_unused_columns"}
    assert own | changed | {"ignore_data_skip"} == known("trl")
