"""Trainers whose advantages come from our derivers. Importing this imports verl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from trajgym.adapters._verl_advantages import group_advantages
from trajgym.adapters._verl_settings import COLUMN, read_settings
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ESTIMATOR",
    "StepColocateAsyncTrainer",
    "StepSeparateAsyncTrainer",
    "StepSyncTrainer",
    "given_advantages",
]

ESTIMATOR = "trajgym"
"""``algorithm.adv_estimator``: advantages that stand in ``rm_scores`` already."""


@register_adv_est(ESTIMATOR)  # type: ignore[untyped-decorator]
def given_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Return what stands in ``rm_scores`` as the advantages, 0 where nothing is trained.

    Nothing is normalised or spread: a value on a turn's last token stays there. Leave
    ``algorithm.use_kl_in_reward`` off, which would change it.

    Args:
        token_level_rewards: float ``[B, R]``.
        response_mask: ``[B, R]``.
        **_: what verl gives to every estimator.

    Returns:
        Advantages and returns, float ``[B, R]``, the same.
    """
    values = token_level_rewards * response_mask
    return values, values


class _Derived:
    """Puts a deriver's advantages where verl has its own."""

    config: Any
    _mode: str

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            section = config.setdefault(COLUMN, {})
            section.trainer = f"{COLUMN}_{self._mode}"
            # verl compares the mode with its own names in several places
            config.trainer.v1.trainer_mode = self._mode
        settings = read_settings(_plain(section), {})
        deriver = settings.group_deriver()
        if deriver is None:
            raise InvalidInput(
                f"trainer.v1.trainer_mode={section.trainer} needs +trajgym.deriver.name, such as "
                "tree_grpo, gigpo or toolpo",
            )
        if config.algorithm.adv_estimator != ESTIMATOR:
            raise InvalidInput(
                f"algorithm.adv_estimator is {config.algorithm.adv_estimator!r}; with "
                f"{section.trainer} it is {ESTIMATOR!r}: the deriver is the estimator",
            )
        self._deriver = deriver
        super().__init__(config)  # type: ignore[call-arg]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Let verl do everything else (corrections, masks), then write the advantages."""
        batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        data = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["extra_fields", "response_mask"],
        )
        masks = list(data["response_mask"])
        carried = _carried(data["extra_fields"], batch.tags)
        planned = int(self.config.actor_rollout_ref.rollout.n)
        values, counts = group_advantages(
            carried, [len(mask) for mask in masks], self._deriver, planned=planned
        )
        rows = [
            torch.from_numpy(np.ascontiguousarray(value)) * mask.to(torch.float32)
            for value, mask in zip(values, masks, strict=True)
        ]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"advantages": nested, "returns": nested.clone()}, len(batch))
        metrics |= {f"trajgym/{name}": float(counts[name]) for name in ("groups", "sessions")}
        metrics["trajgym/groups_that_shrank"] = float(counts["small"])
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


@register_trainer("trajgym_sync")
class StepSyncTrainer(_Derived, PPOTrainerSync):  # type: ignore[misc]
    """``PPOTrainerSync`` with advantages from ``trajgym.deriver``.

    Chosen with ``trainer.v1.trainer_mode=trajgym_sync``. A group is what the batch holds of a
    prompt's sessions: those that failed are not there, and the metrics count groups that shrank.
    """

    _mode = "sync"


@register_trainer("trajgym_colocate_async")
class StepColocateAsyncTrainer(_Derived, PPOTrainerColocateAsync):  # type: ignore[misc]
    """``PPOTrainerColocateAsync``, see :class:`StepSyncTrainer`."""

    _mode = "colocate_async"


@register_trainer("trajgym_separate_async")
class StepSeparateAsyncTrainer(_Derived, PPOTrainerSeparateAsync):  # type: ignore[misc]
    """``PPOTrainerSeparateAsync``, see :class:`StepSyncTrainer`."""

    _mode = "separate_async"


def _carried(extra_fields: Any, tags: Sequence[dict[str, Any]]) -> list[str | None]:
    """Return our field of each row; verl makes padding rows by copying a real one."""
    found: list[str | None] = []
    for value, tag in zip(extra_fields, tags, strict=True):
        fields = getattr(value, "data", value)
        text = fields.get(COLUMN)
        if tag.get("is_padding"):
            found.append(None)
        elif text is None:
            raise InvalidInput(
                "a row of this batch does not come from the agent loop 'trajgym': all of the "
                "data needs agent_name 'trajgym'",
            )
        else:
            found.append(text)
    return found


def _plain(section: Any) -> dict[str, Any]:

    plain: dict[str, Any] = OmegaConf.to_container(section, resolve=True)
    return plain
