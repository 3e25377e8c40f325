"""Rows for AReaL's PPO actor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.adapters._files import Parquet
from trajgym.adapters._images import IMAGE_COLUMNS, image_values
from trajgym.adapters._rows import COMMON, common
from trajgym.adapters._stream import rows_of
from trajgym.rewards import Advantages, Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.adapters._stream import Export
    from trajgym.trajectory import FloatArray, TrainingRow

__all__ = ["export_areal"]

_COLUMNS = COMMON | {
    "input_ids": "list:int32",
    "attention_mask": "list:bool",
    "loss_mask": "list:int32",
    "logprobs": "list:float",
    "versions": "list:int32",
    "version_high": "list:int32",
    "turn_ids": "list:int32",
    "rewards": "float",
    **IMAGE_COLUMNS,
}


def export_areal(export: Export, *, dense: bool | None = None) -> None:
    """Write ``areal.parquet``: per row the tensors of one trajectory, unshifted and unpadded.

    ``versions`` has the low end of a range (the token counts as stale as it can be) and -1 on
    tokens that are not trained; ``version_high`` has the other end. ``turn_ids`` number the row's
    trained turns 0, 1, 2, ... and are -1 elsewhere.

    AReaL takes one reward per row. In scalar form ``rewards`` is the sum of the row's rewards. In
    dense form a column ``values`` is added, which makes its advantages (no critic, discount and
    lambda 1) exactly what was given: each token's reward-to-go, or the `Advantages` with
    ``rewards`` 0. Advantages are always dense.

    ``images`` has the encoded images of the row in order, for AReaL's ``multi_modal_input`` (see
    ``row_inputs``); without ``blobs`` such sessions are left out.

    Args:
        export: what to write.
        dense: True or False for the form; None takes the one that the values need.

    Raises:
        InvalidInput: neither or both kinds of values, or advantages in scalar form.
    """
    advantages = export.value(Advantages)
    if advantages == export.value(Rewards):
        raise InvalidInput(
            "export areal needs either Rewards or Advantages: pass one of them as values, for "
            "example OutcomeReward().derive(table) or GRPO().derive(table)",
        )
    if advantages and dense is False:
        raise InvalidInput("export areal: advantages are per token; they have no scalar form")
    dense = advantages or bool(dense)
    columns = _COLUMNS | ({"values": "list:float"} if dense else {})
    with Parquet(export.file("areal.parquet"), columns) as sink:
        for _, rows in rows_of(export, images="bytes"):
            for row in rows:
                sink.write(_record(row, dense=dense) | image_values(row, export.blobs))
                export.report.count(synthetic=row.synthetic)


def _record(row: TrainingRow, *, dense: bool) -> dict[str, Any]:
    record = common(row) | {
        "input_ids": row.input_ids,
        "attention_mask": np.ones(len(row), dtype=np.bool_),
        "loss_mask": row.loss_mask.astype(np.int32),
        "logprobs": row.logprobs,
        "versions": row.version_low,
        "version_high": row.version_high,
        "turn_ids": _ordinals(row),
        "rewards": 0.0 if row.reward is None else float(row.reward.sum(dtype=np.float64)),
    }
    if dense:
        record["rewards"], record["values"] = _dense(row)
    return record


def _ordinals(row: TrainingRow) -> Any:
    numbers = np.searchsorted(np.array(row.turns, dtype=np.int32), row.turn_ids)
    return np.where(row.loss_mask, numbers, -1).astype(np.int32)


def _dense(row: TrainingRow) -> tuple[float, FloatArray]:
    """Return the row's reward and the values with which GAE gives back what was derived.

    The trainer shifts rewards and masks but not values, and puts the reward on the last token:
    A[t] of the token at t is reward - values[t - 1].
    """
    if row.advantage is not None:
        final, wanted = 0.0, row.advantage
    else:
        assert row.reward is not None
        final = float(row.reward[-1])
        before = row.reward.astype(np.float64)
        before[-1] = 0.0
        wanted = before[::-1].cumsum()[::-1]
    values = np.zeros(len(row), dtype=np.float32)
    values[:-1] = -wanted[1:]
    return final, values
