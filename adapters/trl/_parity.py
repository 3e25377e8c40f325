"""Comparison of the trainer's log-probs with the recorded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.trajectory import ConformanceError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import FloatArray, TrainingRow

__all__ = ["Parity", "check_logprobs"]


class Parity(NamedTuple):
    """Differences of log-probs (nats)."""

    tokens: int
    mean: float
    most: float


def check_logprobs(model: Any, rows: Iterable[TrainingRow], *, tolerance: float = 1e-3) -> Parity:
    """Compare a model's log-probs with the recorded ones, on every trained token.

    The model must have the weights that sampled the rows. In float32 the difference is about 1e-6.
    A shift by one token, another temperature, raw log-probs or re-tokenised text make it at least a
    thousand times larger; with an engine in bfloat16 it is 0.01 to 0.1.

    Args:
        model: a causal language model of transformers.
        rows: with a recorded temperature.
        tolerance: largest difference allowed (nats).

    Returns:
        Number of tokens, mean and largest difference.

    Raises:
        ConformanceError: a difference exceeds the tolerance; the message has session and token.
        InvalidInput: there are no rows, or a row has an unknown or mixed temperature.
    """
    gaps: list[FloatArray] = []
    worst = (-1.0, "")
    for row in rows:
        gap = _gaps(model, row)
        gaps.append(gap)
        at = int(gap.argmax())
        if gap[at] > worst[0]:
            position = int(np.flatnonzero(row.loss_mask)[at])
            worst = (float(gap[at]), f"session {row.session}, token {position}")
    if not gaps:
        raise InvalidInput("check_logprobs: no rows")
    every = np.concatenate(gaps)
    found = Parity(every.size, float(every.mean(dtype=np.float64)), worst[0])
    if not found.most <= tolerance:
        raise ConformanceError(
            f"log-probs of trainer and sampler differ by up to {found.most:.3g} (mean "
            f"{found.mean:.3g}, allowed {tolerance:g}), most at {worst[1]}: compare temperature, "
            "log-prob mode and weights, and check that ids are not shifted by one",
        )
    return found


def _gaps(model: Any, row: TrainingRow) -> FloatArray:
    import torch

    if row.temperature is None or row.logprob_mode == "unknown":
        raise InvalidInput(
            f"row of session {row.session}: log-probs can't be compared with temperature "
            f"{row.temperature} and log-prob mode {row.logprob_mode!r}",
        )
    temperature = row.temperature if row.logprob_mode == "processed" else 1.0
    ids = torch.tensor(row.input_ids[None].astype(np.int64), device=model.device)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1].float() / temperature
        chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    mask = row.loss_mask[1:]
    gap: FloatArray = np.abs(chosen.cpu().numpy()[mask] - row.logprobs[1:][mask])
    return gap
