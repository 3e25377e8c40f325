"""Applying values over turns and spans to the tokens of training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trajgym.rewards._run_values import RunValues
from trajgym.rewards._values import Advantages, Rewards
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trajgym.rewards._values import SessionValues
    from trajgym.trajectory import RowSpan, TrainingRow

__all__ = ["apply"]


def apply(
    rows: Iterable[TrainingRow], values: Rewards | Advantages | RunValues
) -> list[TrainingRow]:
    """Return the rows with a reward on each turn's last sampled token, or an advantage on all.

    Values over spans are added to those of their turns: a span's reward on its last sampled token
    (its turn's last, if the whole span was inserted), its advantage on all of its sampled tokens.
    The given rows are not changed; the new ones share their other arrays. Turns that are not
    scored get zeros. Applying rewards and then advantages gives rows that have both.

    Raises:
        InvalidInput: there are no values for a row's session, or values over spans come from a
            table with other spans than those of the row.
        TypeError: ``values`` is neither `Rewards` nor `Advantages`.
    """
    if not isinstance(values, Rewards | Advantages | RunValues):
        raise TypeError(f"expected Rewards or Advantages, got {type(values).__name__}")
    place = _with_rewards if values.kind is Rewards else _with_advantages
    return [place(row, values) for row in rows]


def _with_rewards(row: TrainingRow, values: Rewards | Advantages | RunValues) -> TrainingRow:
    reward = np.zeros(len(row))
    ends = row.turn_ends
    found = values.session(row.session)
    reward[ends] = found.turns[row.turn_ids[ends]]
    for span, value in _span_values(row, found):
        reward[row.last_trained(span)] += value
    stamp = values.stamp._replace(group=row.group)
    return replace(row, reward=reward.astype(np.float32), reward_stamp=stamp)


def _with_advantages(row: TrainingRow, values: Rewards | Advantages | RunValues) -> TrainingRow:
    advantage = np.zeros(len(row))
    trained = row.loss_mask
    found = values.session(row.session)
    advantage[trained] = found.turns[row.turn_ids[trained]]
    for span, value in _span_values(row, found):
        inside = slice(span.start, span.end)
        advantage[inside] += value * trained[inside]
    stamp = values.stamp._replace(group=row.group)
    return replace(row, advantage=advantage.astype(np.float32), advantage_stamp=stamp)


def _span_values(row: TrainingRow, found: SessionValues) -> Iterator[tuple[RowSpan, float]]:
    if found.spans is None:
        return
    for span in row.spans:
        first, stop = found.span_starts[span.turn : span.turn + 2].tolist()
        if first + span.number >= stop:
            raise InvalidInput(
                f"session {row.session}: turn {span.turn} has a span {span.number} in the row but "
                f"{stop - first} spans in the table; build both from the same session",
            )
        yield span, float(found.spans[first + span.number])
