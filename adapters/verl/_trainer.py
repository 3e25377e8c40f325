"""verl's trainers with advantages from a deriver. Importing this module imports verl."""

from __future__ import annotations

import json
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

from trajgym.adapters.verl._advantages import group_advantages
from trajgym.adapters.verl._denominators import aggregation_of, session_factors
from trajgym.adapters.verl._settings import COLUMN, read_settings
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
"""Value of ``algorithm.adv_estimator`` that takes the advantages from ``rm_scores``."""


@register_adv_est(ESTIMATOR)  # type: ignore[untyped-decorator]
def given_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Return the values of ``rm_scores`` as advantages, 0 on masked ids.

    Values are neither normalised nor spread over tokens. ``algorithm.use_kl_in_reward`` must be
    False, because it would change them.

    Args:
        token_level_rewards: float ``[B, R]``.
        response_mask: ``[B, R]``.
        **_: further arguments of verl's estimators, not used.

    Returns:
        Advantages and returns, both the same float ``[B, R]``.
    """
    values = token_level_rewards * response_mask
    return values, values


class _Derived:
    """Replaces verl's advantages by a deriver's."""

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
                f"algorithm.adv_estimator is {config.algorithm.adv_estimator!r}; it must be "
                f"{ESTIMATOR!r} with {section.trainer}, whose advantages come from the deriver",
            )
        self._deriver = deriver
        super().__init__(config)  # type: ignore[call-arg]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Run verl's own step (corrections, masks), then replace the advantages."""
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
        sessions = [None if text is None else json.loads(text)["session"] for text in carried]
        actor = self.config.actor_rollout_ref.actor
        loss = OmegaConf.select(actor, "policy_loss.loss_mode", default="vanilla")
        factors = session_factors(
            aggregation_of(str(loss), str(actor.loss_agg_mode)),
            sessions,
            [int(mask.sum()) for mask in masks],
        )
        rows = [
            torch.from_numpy(np.ascontiguousarray(value)) * mask.to(torch.float32) * factor
            for value, mask, factor in zip(values, masks, factors, strict=True)
        ]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"advantages": nested, "returns": nested.clone()}, len(batch))
        metrics |= {f"trajgym/{name}": float(counts[name]) for name in ("groups", "sessions")}
        metrics["trajgym/groups_that_shrank"] = float(counts["small"])
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


@register_trainer("trajgym_sync")
class StepSyncTrainer(_Derived, PPOTrainerSync):  # type: ignore[misc]
    """``PPOTrainerSync`` with advantages from ``trajgym.deriver``.

    With ``actor.loss_agg_mode=seq-mean-*`` the advantages are scaled so that the loss is a mean
    over sessions; verl's is a mean over rows, including padding rows.

    Selected by ``trainer.v1.trainer_mode=trajgym_sync``. A group consists of a prompt's sessions in
    the batch, without failed ones; metrics count the groups that shrank.
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
    """Return the extra field ``trajgym`` of each row, None for padding rows, which are copies."""
    found: list[str | None] = []
    for value, tag in zip(extra_fields, tags, strict=True):
        fields = getattr(value, "data", value)
        text = fields.get(COLUMN)
        if tag.get("is_padding"):
            found.append(None)
        elif text is None:
            raise InvalidInput(
                "a row of this batch was not made by the agent loop 'trajgym': set agent_name to "
                "'trajgym' in all rows of the data",
            )
        else:
            found.append(text)
    return found


def _plain(section: Any) -> dict[str, Any]:

    plain: dict[str, Any] = OmegaConf.to_container(section, resolve=True)
    return plain
