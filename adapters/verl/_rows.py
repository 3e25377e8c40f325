"""A training row as verl takes it: a prompt, a response, and per-id arrays of the response."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.trajectory import (
    InvalidInput,
    InvalidRow,
    RowSpan,
    TrainingRow,
    oldest_trained_version,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from trajgym.trajectory import FloatArray, IntArray, SessionTree

__all__ = ["VerlRow", "describe_row", "in_order", "main_row", "row_from", "split"]


class VerlRow(NamedTuple):
    """One output of an agent loop, as arrays."""

    prompt: IntArray
    """int32 ``[P]``, the ids before the first trained id."""
    response: IntArray
    """int32 ``[R]``, from the first trained id to the last."""
    mask: npt.NDArray[np.bool_]
    """bool ``[R]``, whether an id is trained."""
    logprobs: FloatArray
    """float32 ``[R]``, nats, 0 where not trained."""
    rewards: FloatArray | None
    """float32 ``[R]``, each turn's on its last sampled id."""
    advantages: FloatArray | None
    """float32 ``[R]``, on every trained id."""
    version_low: int
    version_high: int


def split(row: TrainingRow) -> VerlRow:
    """Split a row into prompt and response.

    Raises:
        InvalidRow: an array has another length than the ids, or the row does not end on a trained
            id. verl checks neither: it pads arrays, and ignores rewards on masked ids.
    """
    start = int(row.loss_mask.argmax())
    arrays = (row.loss_mask, row.logprobs, row.reward, row.advantage)
    if any(array is not None and array.size != len(row) for array in arrays):
        raise InvalidRow(
            f"session {row.session}: an array of a row has another length than its ids"
        )
    if start == 0 or not row.loss_mask[-1]:
        raise InvalidRow(
            f"session {row.session}: a row must start with a prompt and end on a trained id",
        )
    return VerlRow(
        prompt=row.input_ids[:start],
        response=row.input_ids[start:],
        mask=row.loss_mask[start:],
        logprobs=row.logprobs[start:],
        rewards=None if row.reward is None else row.reward[start:],
        advantages=None if row.advantage is None else row.advantage[start:],
        version_low=oldest_trained_version([row]),
        version_high=int(row.version_high.max()),
    )


def in_order(tree: SessionTree, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Return the rows, the row with the first attempt's last turn last: verl scores it."""
    main = main_row(tree, rows)
    return [row for row in rows if row is not main] + [row for row in rows if row is main]


def main_row(tree: SessionTree, rows: Sequence[TrainingRow]) -> TrainingRow | None:
    """Return the row with the first attempt's last turn, or the last row if there is none."""
    leaf = tree.attempts[0].leaf
    return next((row for row in rows if leaf in row.turns), rows[-1] if rows else None)


def describe_row(row: TrainingRow) -> dict[str, Any]:
    """Return the turns and spans of the response's ids as JSON values."""
    start = int(row.loss_mask.argmax())
    turns = row.turn_ids[start:]
    edges = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), turns.size]
    runs = [
        [int(turns[first]), first, stop]
        for first, stop in itertools.pairwise(edges)
        if turns[first] >= 0
    ]
    spans = [
        [span.turn, span.number, span.kind, span.start - start, span.end - start]
        for span in row.spans
    ]
    return {"session": row.session, "attempt": row.attempt, "runs": runs, "spans": spans}


def row_from(described: Mapping[str, Any], size: int) -> TrainingRow:
    """Return a row of the response alone, with the turns and spans of :func:`describe_row`.

    Its ids and log-probs are zeros; it is used only to place values on tokens.

    Raises:
        InvalidInput: the description is of another number of ids.
    """
    turn_ids = np.full(size, -1, dtype=np.int32)
    for turn, start, stop in described["runs"]:
        turn_ids[start:stop] = turn
    if not described["runs"] or described["runs"][-1][2] != size:
        raise InvalidInput(
            f"session {described['session']}: a row of {size} ids has the description of another "
            "row",
        )
    zeros = np.zeros(size, dtype=np.int32)
    return TrainingRow(
        session=described["session"],
        group=None,
        attempt=described["attempt"],
        turns=tuple(dict.fromkeys(turn for turn, _, _ in described["runs"])),
        input_ids=zeros,
        loss_mask=turn_ids >= 0,
        logprobs=np.zeros(size, dtype=np.float32),
        version_low=zeros,
        version_high=zeros,
        turn_ids=turn_ids,
        spans=tuple(RowSpan(*span) for span in described["spans"]),
    )
