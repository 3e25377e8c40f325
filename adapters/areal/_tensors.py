"""From training rows to the arrays and tensors that AReaL's PPO actor takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.trajectory import InvalidInput, UnsupportedModality, validate_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import FloatArray, TrainingRow

__all__ = ["areal_arrays", "areal_tensors", "turn_ordinals"]

_FILL = {"versions": -1, "turn_ids": -1}
"""Padding values by name; 0 for other names."""


def areal_arrays(row: TrainingRow, *, dense: bool) -> dict[str, Any]:
    """Return one row's arrays, ``[T]`` each and unshifted, and its scalar ``rewards``.

    Args:
        row: with a reward or an advantage.
        dense: add ``values``, with which AReaL's advantage of a token is the row's, or the sum of
            the rewards from the token on. Otherwise ``rewards`` is the sum of the row's rewards.

    Raises:
        InvalidInput: the row has neither, or has advantages and ``dense`` is False.
    """
    if row.reward is None and row.advantage is None:
        raise InvalidInput(f"row of session {row.session} has no values; apply a deriver first")
    if row.advantage is not None and not dense:
        raise InvalidInput(
            f"row of session {row.session}: advantages are per token; they have no scalar form",
        )
    arrays: dict[str, Any] = {
        "input_ids": row.input_ids,
        "attention_mask": np.ones(len(row), dtype=np.bool_),
        "loss_mask": row.loss_mask.astype(np.int32),
        "logprobs": row.logprobs,
        "versions": row.version_low,
        "rewards": 0.0 if row.reward is None else float(row.reward.sum(dtype=np.float64)),
    }
    if dense:
        arrays["rewards"], arrays["values"] = _dense(row)
    return arrays


def areal_tensors(
    rows: Sequence[TrainingRow], *, dense: bool | None = None, turn_ids: bool = False
) -> dict[str, Any]:
    """Return rows as one trajectory of AReaL: tensors ``[B, T]``, unshifted, padded on the right.

    ``input_ids``, ``loss_mask`` and ``versions`` are int32, ``attention_mask`` bool, ``logprobs``
    float32, ``rewards`` float32 ``[B]``; the dense form adds ``values``, float32. ``versions`` is
    the lower bound of a token's version, and -1 on tokens that are not trained. All trajectories of
    a run must have the same keys, so use one form throughout.

    The dense form needs ``discount`` and ``gae_lambda`` of 1 and no critic; see ``docs/areal.md``.

    Args:
        rows: at least one, with values of one kind.
        dense: the form; None takes the dense form for advantages and the scalar form for rewards.
        turn_ids: whether to add int32 ``turn_ids``: each row's trained turns numbered from 0, -1
            elsewhere (read by AReaL 2).

    Raises:
        InvalidInput: there are no rows, or the values don't fit the form.
        UnsupportedModality: a row has images.
        InvalidRow: a row is invalid, see :func:`trajgym.trajectory.validate_row`.
    """
    import torch

    if not rows:
        raise InvalidInput("there are no rows; return None to AReaL instead")
    for row in rows:
        validate_row(row)
        if row.images:
            raise UnsupportedModality(
                f"row of session {row.session} has images, which this adapter can't pass to AReaL; "
                "leave such sessions out",
            )
    form = rows[0].advantage is not None if dense is None else dense
    made = [areal_arrays(row, dense=form) for row in rows]
    if turn_ids:
        for row, arrays in zip(rows, made, strict=True):
            arrays["turn_ids"] = turn_ordinals(row)
    width = max(map(len, rows))
    tensors: dict[str, Any] = {}
    for name, first in made[0].items():
        if name == "rewards":
            values = [arrays[name] for arrays in made]
            tensors[name] = torch.tensor(values, dtype=torch.float32)
            continue
        padded = np.full((len(rows), width), _FILL.get(name, 0), dtype=first.dtype)
        for place, arrays in zip(padded, made, strict=True):
            place[: arrays[name].size] = arrays[name]
        tensors[name] = torch.from_numpy(padded)
    return tensors


def turn_ordinals(row: TrainingRow) -> Any:
    """Return int32 ``[T]``: the row's trained turns numbered from 0, -1 elsewhere."""
    numbers = np.searchsorted(np.array(row.turns, dtype=np.int32), row.turn_ids)
    return np.where(row.loss_mask, numbers, -1).astype(np.int32)


def _dense(row: TrainingRow) -> tuple[float, FloatArray]:
    """Return the row's reward, and the values with which GAE results in the row's advantages.

    AReaL shifts rewards and masks but not values, and puts the reward on the last token, so the
    advantage of the token at t is ``reward - values[t - 1]``.
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
