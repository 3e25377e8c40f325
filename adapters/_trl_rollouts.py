"""From a sealed group to the rows that TRL's ``rollout_func`` gives back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rewards import Advantages, TurnTable, apply
from trajgym.trajectory import InvalidInput, UnsupportedModality, build_rows, validate_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rewards import Deriver
    from trajgym.rollout import SealedGroup
    from trajgym.trajectory import SessionTree, TrainingRow

__all__ = ["Played", "played"]


class Played(NamedTuple):
    """One sample of a task, as TRL's ``rollout_func`` gives it back."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    advantage: list[float]
    """Empty without a deriver, and for a filler."""
    score: float | None
    session: str


def played(
    sealed: SealedGroup, deriver: Deriver | None, filler: int, samples: int
) -> tuple[list[Played], Counter[str]]:
    """Return the samples of a group in order, and what was left out, by reason.

    TRL wants a row from every session: one that failed, or has no rows, becomes a filler without
    a trained token or a score. A session with several rows (its context was rewritten) gives the
    row of its last turn.

    Raises:
        InvalidInput: the deriver gives no advantages.
        UnsupportedModality: a session shows images.
    """
    left: Counter[str] = Counter(m.left for m in sealed.group.members if m.left)
    values = None
    if deriver is not None and sealed.sessions:
        digests = deriver.needs_digests
        table = TurnTable.build([sealed.group], sealed.sessions, digests=digests)
        values = deriver.derive(table)
        if not isinstance(values, Advantages):
            raise InvalidInput(f"deriver {deriver.name!r} gives rewards, not advantages")
    found: dict[int, Played] = {}
    for tree in sealed.sessions:
        try:
            rows = build_rows(tree).rows
            rows = rows if values is None else apply(rows, values)
            for row in rows:
                validate_row(row)
        except UnsupportedModality:
            raise
        except InvalidInput as error:
            left[str(error)] += 1
            continue
        if not rows:
            left["no sampled token"] += 1
            continue
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
