"""From values over turns to values over the tokens of training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trajgym.rewards._values import Advantages, Rewards

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import TrainingRow

__all__ = ["apply"]


def apply(rows: Iterable[TrainingRow], values: Rewards | Advantages) -> list[TrainingRow]:
    """Return the rows with a reward on each turn's last sampled token, or an advantage on all.

    The rows given are not changed; the new ones share their other arrays. Rows of turns that are
    not scored get zeros. Applying rewards and then advantages gives rows that carry both.

    Raises:
        InvalidInput: a row's session has no such values.
        TypeError: ``values`` is neither `Rewards` nor `Advantages`.
    """
    if not isinstance(values, Rewards | Advantages):
        raise TypeError(f"expected Rewards or Advantages, got {type(values).__name__}")
    place = _with_rewards if isinstance(values, Rewards) else _with_advantages
    return [place(row, values) for row in rows]


def _with_rewards(row: TrainingRow, values: Rewards | Advantages) -> TrainingRow:
    reward = np.zeros(len(row), dtype=np.float32)
    ends = row.turn_ends
    reward[ends] = values.of(row.session)[row.turn_ids[ends]]
    return replace(row, reward=reward, reward_stamp=values.stamp._replace(group=row.group))


def _with_advantages(row: TrainingRow, values: Rewards | Advantages) -> TrainingRow:
    advantage = np.zeros(len(row), dtype=np.float32)
    trained = row.loss_mask
    advantage[trained] = values.of(row.session)[row.turn_ids[trained]]
    return replace(row, advantage=advantage, advantage_stamp=values.stamp._replace(group=row.group))
