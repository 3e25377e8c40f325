"""Weights of rows under verl's losses that average over sequences.

``loss_agg_mode=seq-mean-*`` divides by a fixed number of rows: fillers count, and a session with
several rows counts several times. verl's policy loss is positively homogeneous in the advantages,
so scaling them makes it a mean over sessions.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AGGREGATIONS", "aggregation_of", "scales", "session_factors"]

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)

_SCALING = {"vanilla", "dppo_tv", "dppo_kl", "gpg", "cispo", "sapo"}
"""Losses that are positively homogeneous in the advantages of single tokens."""


def aggregation_of(loss_mode: str, loss_agg_mode: str) -> str:
    """Return the aggregation that a policy loss of verl really uses.

    Args:
        loss_mode: ``actor.policy_loss.loss_mode``.
        loss_agg_mode: ``actor.loss_agg_mode``, which ``sapo`` ignores.
    """
    return "seq-mean-token-mean" if loss_mode == "sapo" else loss_agg_mode


def scales(loss_mode: str) -> bool:
    """Return whether factors on advantages scale this loss of verl, token by token."""
    return loss_mode in _SCALING


def session_factors(
    mode: str, sessions: Sequence[str | None], tokens: Sequence[int], *, divisor: int | None = None
) -> list[float]:
    """Return for each row the factor on its advantages that makes the loss a mean over sessions.

    With several mini-batches, the mean is over the sessions of the whole batch.

    Args:
        mode: ``actor.loss_agg_mode``.
        sessions: the session of each row; None for a filler.
        tokens: trained tokens of each row.
        divisor: number of rows that verl divides by, over all mini-batches; by default all rows.

    Returns:
        1 for every row if the loss is over tokens. Otherwise ``divisor`` divided by the number of
        sessions, multiplied by the row's share of its session's tokens if the loss is a mean over
        the tokens of a row; 0 for fillers.

    Raises:
        InvalidInput: ``mode`` is unknown.
    """
    if mode not in AGGREGATIONS:
        raise InvalidInput(f"actor.loss_agg_mode is {mode!r}; verl has {', '.join(AGGREGATIONS)}")
    if not mode.startswith("seq-mean"):
        return [1.0] * len(sessions)
    total: Counter[str] = Counter()
    for session, count in zip(sessions, tokens, strict=True):
        if session is not None:
            total[session] += count
    rows = len(sessions) if divisor is None else divisor
    each = rows / max(len(total), 1)
    if mode != "seq-mean-token-mean":
        return [0.0 if session is None else each for session in sessions]
    return [
        0.0 if session is None else each * count / total[session]
        for session, count in zip(sessions, tokens, strict=True)
    ]
