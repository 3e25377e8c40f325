"""A training row in verl's terms: a prompt, a response, and what stands on each of its ids."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trajgym.rewards import Rewards, TurnTable, apply
from trajgym.trajectory import (
    Group,
    InvalidInput,
    InvalidRow,
    Member,
    RowSpan,
    TrainingRow,
    build_rows,
    validate_row,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from trajgym.rewards import Deriver
    from trajgym.trajectory import FloatArray, IntArray, SessionTree

__all__ = ["VerlRow", "describe_row", "in_order", "main_row", "rewarded_rows", "row_from", "split"]


class VerlRow(NamedTuple):
    """One output of an agent loop, as arrays."""

    prompt: IntArray
    """int32 ``[P]``, the ids before the first trained one."""
    response: IntArray
    """int32 ``[R]``, from there to the last trained one."""
    mask: npt.NDArray[np.bool_]
    """bool ``[R]``, trained here."""
    logprobs: FloatArray
    """float32 ``[R]``, nats, 0 where not trained."""
    rewards: FloatArray | None
    """float32 ``[R]``, each turn's on its last sampled id."""
    advantages: FloatArray | None
    """float32 ``[R]``, on every trained id."""
    version_low: int
    version_high: int


def split(row: TrainingRow) -> VerlRow:
    """Return a row as verl wants it.

    Raises:
        InvalidRow: arrays of other lengths than the ids, or a row that does not end on a trained
            id. verl checks neither, pads the one in silence and loses rewards with the other.
    """
    start = int(row.loss_mask.argmax())
    arrays = (row.loss_mask, row.logprobs, row.reward, row.advantage)
    if any(array is not None and array.size != len(row) for array in arrays):
        raise InvalidRow(f"session {row.session}: a row has arrays of other lengths than its ids")
    if start == 0 or not row.loss_mask[-1]:
        raise InvalidRow(
            f"session {row.session}: a row for verl starts with a prompt and ends on a trained id",
        )
    return VerlRow(
        prompt=row.input_ids[:start],
        response=row.input_ids[start:],
        mask=row.loss_mask[start:],
        logprobs=row.logprobs[start:],
        rewards=None if row.reward is None else row.reward[start:],
        advantages=None if row.advantage is None else row.advantage[start:],
        version_low=int(row.version_low[row.loss_mask].min()),
        version_high=int(row.version_high.max()),
    )


def rewarded_rows(tree: SessionTree, derivers: Sequence[Deriver]) -> list[TrainingRow]:
    """Return a session's rows with the sum of these rewards, each row checked.

    Raises:
        InvalidInput: a deriver gives advantages, or a row would be mangled.
    """
    group = Group(
        id="session",
        task=tree.record.task,
        planned=1,
        members=[Member(tree.record.id, tree.record.sample)],
        sealed=True,
    )
    table = TurnTable.build(
        [group],
        [tree],
        digests=any(deriver.needs_digests for deriver in derivers),
        texts=any(deriver.needs_texts for deriver in derivers),
        signals=sorted({name for deriver in derivers for name in deriver.needs_signals}),
    )
    total: Rewards | None = None
    for deriver in derivers:
        values = deriver.derive(table)
        if not isinstance(values, Rewards):
            raise InvalidInput(
                f"trajgym.rewards: {deriver.name!r} gives advantages: set it as trajgym.deriver",
            )
        total = values if total is None else total + values
    assert total is not None
    rows = apply(build_rows(tree).rows, total)
    for row in rows:
        validate_row(row)
    return rows


def in_order(tree: SessionTree, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Return the rows with that of the first attempt's last turn at the end: verl scores it."""
    main = main_row(tree, rows)
    return [row for row in rows if row is not main] + [row for row in rows if row is main]


def main_row(tree: SessionTree, rows: Sequence[TrainingRow]) -> TrainingRow | None:
    """Return the row in which the first attempt ended, the last one if that row has no id."""
    leaf = tree.attempts[0].leaf
    return next((row for row in rows if leaf in row.turns), rows[-1] if rows else None)


def describe_row(row: TrainingRow) -> dict[str, Any]:
    """Return as JSON values which turn and span each id of the response belongs to."""
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

    Its ids and log-probs are zeros: it serves to place values on tokens.

    Raises:
        InvalidInput: it describes more ids than there are.
    """
    turn_ids = np.full(size, -1, dtype=np.int32)
    for turn, start, stop in described["runs"]:
        turn_ids[start:stop] = turn
    if not described["runs"] or described["runs"][-1][2] != size:
        raise InvalidInput(
            f"session {described['session']}: a row of {size} ids came back with a description "
            "of another one",
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
