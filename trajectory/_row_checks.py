"""Validation of training rows before they are passed to a trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajgym.trajectory._errors import InvalidRow

if TYPE_CHECKING:
    from trajgym.trajectory._rows import TrainingRow

__all__ = ["validate_row"]

_LOGPROB_SLACK = 1e-3
_DTYPES = (
    ("input_ids", np.int32),
    ("loss_mask", np.bool_),
    ("logprobs", np.float32),
    ("version_low", np.int32),
    ("version_high", np.int32),
    ("turn_ids", np.int32),
    ("reward", np.float32),
    ("advantage", np.float32),
)


def validate_row(row: TrainingRow) -> None:
    """Raise if a row breaks an invariant that trainers rely on without checking it.

    Raises:
        InvalidRow: an array has the wrong shape or dtype; the first token is trained or the last
            is not; log-probs, versions, turn ids or spans disagree with the mask; a reward is not
            on the last sampled token of its turn or span; values are not finite or have no stamp.
    """
    try:
        _check_shapes(row)
        _check_ids(row)
        _check_mask(row)
        _check_spans(row)
        _check_behaviour(row)
        _check_values(row)
    except InvalidRow as error:
        raise InvalidRow(f"row of session {row.session}, turns {list(row.turns)}: {error}") from (
            None
        )


def _require(ok: bool | np.bool_, message: str) -> None:
    if not ok:
        raise InvalidRow(message)


def _check_shapes(row: TrainingRow) -> None:
    shape = (row.input_ids.size,)
    _require(shape[0] >= 2, "a row needs a prompt token and a trained one")
    for name, dtype in _DTYPES:
        array = getattr(row, name)
        if array is None and name in {"reward", "advantage"}:
            continue
        _require(
            isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape,
            f"{name} must be {np.dtype(dtype).name} of shape {shape}, got "
            f"{getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}",
        )


def _check_ids(row: TrainingRow) -> None:
    _require(row.input_ids.min() >= 0, "input_ids holds a negative id")
    _require(np.isfinite(row.weight) and row.weight > 0, f"weight is {row.weight}; use (0, 1]")
    end = 0
    for image in row.images:
        _require(
            end <= image.start < image.end <= len(row),
            f"image {image.blob[:12]} spans [{image.start}, {image.end}) of {len(row)} tokens, the "
            f"image before it ends at {end}",
        )
        _require(
            not row.loss_mask[image.start : image.end].any(),
            f"image {image.blob[:12]}: placeholders at [{image.start}, {image.end}) are trained",
        )
        end = image.end


def _check_mask(row: TrainingRow) -> None:
    mask = row.loss_mask
    _require(not mask[0], "loss_mask[0] is set: no token precedes the first one to predict it from")
    _require(mask[-1], "ends on a masked token: cut it after its last trained token")
    _require(
        np.array_equal(row.turn_ids >= 0, mask) and row.turn_ids.min() >= -1,
        "turn_ids must be a turn index where loss_mask is set and -1 elsewhere",
    )
    trained = row.turn_ids[row.turn_ends]
    _require(
        trained.tolist() == list(row.turns) and len(set(row.turns)) == len(row.turns),
        f"turns are {list(row.turns)} but turn_ids hold {trained.tolist()}",
    )


def _check_spans(row: TrainingRow) -> None:
    for span in row.spans:
        _require(
            0 <= span.start < span.end <= len(row) and span.turn in row.turns,
            f"{span} does not lie in a trained turn of {len(row)} tokens",
        )


def _check_behaviour(row: TrainingRow) -> None:
    mask = row.loss_mask
    low, high = row.version_low, row.version_high
    _require(np.isfinite(row.logprobs).all(), "logprobs are not all finite")
    _require(row.logprobs.max() <= _LOGPROB_SLACK, "a log-prob is above 0")
    _require(not row.logprobs[~mask].any(), "logprobs must be 0.0 where loss_mask is not set")
    _require(
        np.array_equal(low >= 0, mask) and np.array_equal(high >= 0, mask),
        "versions must be >= 0 exactly where loss_mask is set",
    )
    _require((low <= high).all(), "version_low is above version_high")
    _require(min(low.min(), high.min()) >= -1, "versions are -1 where loss_mask is not set")


def _check_values(row: TrainingRow) -> None:
    for name in ("reward", "advantage"):
        array, stamp = getattr(row, name), getattr(row, f"{name}_stamp")
        _require((array is None) == (stamp is None), f"{name} and {name}_stamp go together")
        _require(array is None or np.isfinite(array).all(), f"{name} is not all finite")
    if row.reward is not None:
        elsewhere = row.reward.copy()
        elsewhere[row.turn_ends] = 0.0
        elsewhere[[row.last_trained(span) for span in row.spans]] = 0.0
        _require(
            not elsewhere.any(),
            f"reward at token {int(np.argmax(elsewhere != 0))}: the reward of a turn or span must "
            "be on its last sampled token",
        )
    if row.advantage is not None:
        _require(not row.advantage[~row.loss_mask].any(), "advantage on an untrained token")
