"""From a sealed group to the rows that TRL's ``rollout_func`` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from trajgym.adapters._group_rows import RowBuilder
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["Played", "played"]


class Played(NamedTuple):
    """One sample of a task, as TRL's ``rollout_func`` returns it."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    advantage: list[float]
    """Empty without a deriver, and for a filler."""
    score: float | None
    session: str


def played(
    sealed: SealedGroup, build: RowBuilder, filler: int, samples: int
) -> tuple[list[Played], Counter[str]]:
    """Return the samples of a group in order, and counts of what was left out by reason.

    TRL needs a row for every session: a session that failed, or has no rows, becomes a filler
    without a trained token and without a score. Of a session with several rows (its context was
    rewritten), the row of its last turn is returned.

    Raises:
        MissingSignals: a session lacks signals that the deriver reads.
        UnsupportedModality: a session has images.
    """
    made = build(sealed)
    left = made.left + made.dropped + made.lacking
    found: dict[int, Played] = {}
    for tree, rows in made.sessions:
        if len(rows) > 1:
            left["earlier rows of rewritten sessions"] += len(rows) - 1
        found[tree.record.sample] = _sample(tree, _last(tree, rows))
    empty = Played([filler], [filler], [0.0], [0], [], None, "")
    return [found.get(i, empty) for i in range(samples)], left


def _last(tree: SessionTree, rows: Sequence[TrainingRow]) -> TrainingRow:
    leaf = tree.attempts[0].leaf
    return next((row for row in rows if leaf in row.turns), rows[-1])


def _sample(tree: SessionTree, row: TrainingRow) -> Played:
    start = int(row.loss_mask.argmax())
    outcome = tree.attempts[row.attempt].outcome
    advantage = row.advantage
    return Played(
        prompt_ids=row.input_ids[:start].tolist(),
        completion_ids=row.input_ids[start:].tolist(),
        logprobs=row.logprobs[start:].tolist(),
        mask=row.loss_mask[start:].astype(int).tolist(),
        advantage=[] if advantage is None else advantage[start:].tolist(),
        score=None if outcome is None else outcome.score,
        session=tree.record.id,
    )
