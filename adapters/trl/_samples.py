"""From training rows to the samples of TRL's asynchronous trainer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from trajgym.trajectory import InvalidInput, oldest_trained_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from trajgym.trajectory import Message, SessionTree, TrainingRow

__all__ = [
    "Form",
    "Part",
    "Sample",
    "group_number",
    "rollout_samples",
    "session_samples",
    "split_row",
]

Form: TypeAlias = Literal["auto", "turn", "row"]
"""How rows are split into samples:

- ``turn``: one sample for each turn, or several if its tokens have different advantages (values
  over spans);
- ``row``: one sample for each row, whose tokens must all have the same advantage;
- ``auto``: ``row`` where possible, otherwise ``turn``.
"""


class Part(NamedTuple):
    """The part of a row that one sample trains: the ids in ``mask``, with all ids up to ``end``."""

    turns: tuple[int, ...]
    end: int
    mask: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Sample:
    """The fields of TRL's ``RolloutSample``, for processes that don't import TRL."""

    prompt: list[Message]
    completion: list[Message]
    input_ids: npt.NDArray[np.int64]
    completion_mask: npt.NDArray[np.int64]
    old_log_probs: npt.NDArray[np.float32]
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float | None = None

    def for_trl(self) -> Any:
        """Return a ``RolloutSample`` of TRL."""
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        return RolloutSample(**{name: getattr(self, name) for name in self.__slots__})


def split_row(row: TrainingRow, form: Form = "auto") -> Iterator[Part]:
    """Yield parts of a row with one advantage each, which together train each token once.

    Raises:
        InvalidInput: the row has no advantages, or several although ``form`` is ``row``.
    """
    if row.advantage is None:
        raise InvalidInput(f"row of session {row.session} has no advantages; apply a deriver first")
    values = np.unique(row.advantage[row.loss_mask])
    if form == "row" and values.size > 1:
        raise InvalidInput(
            f"the tokens of a row of session {row.session} have the advantages {values.tolist()}, "
            "but TRL takes one per sample: use form='auto' or 'turn', or a deriver with one "
            "advantage for each attempt",
        )
    if values.size == 1 and form != "turn":
        yield Part(row.turns, len(row), row.loss_mask)
        return
    for turn in row.turns:
        own = row.turn_ids == turn
        for value in np.unique(row.advantage[own]):
            mask = own & (row.advantage == value)
            end = int(np.flatnonzero(mask)[-1]) + 1
            yield Part((turn,), end, mask[:end])


def rollout_samples(
    tree: SessionTree, rows: Sequence[TrainingRow], *, form: Form = "auto"
) -> list[Any]:
    """Return a session's rows as ``RolloutSample`` objects of TRL.

    All samples have the same ``model_version``, the oldest that may have sampled a trained token of
    the session: TRL drops stale samples one by one, and would otherwise drop only the first turns
    of a session. Log-probs are 0 on tokens that a sample does not train.

    Args:
        tree: the session.
        rows: all of its rows, with advantages.
        form: how rows become samples.

    Raises:
        InvalidInput: see :func:`split_row`.
    """
    return [sample.for_trl() for sample in session_samples(tree, rows, form=form)]


def session_samples(
    tree: SessionTree, rows: Sequence[TrainingRow], *, form: Form = "auto"
) -> list[Sample]:
    """Return the samples of :func:`rollout_samples` without importing TRL."""
    if not rows:
        return []
    oldest = oldest_trained_version(rows)
    group = group_number(tree.record.group or tree.record.id)
    samples: list[Sample] = []
    for row in rows:
        score = tree.attempts[row.attempt].outcome
        metrics = {} if score is None else {"sample/reward": score.score}
        for part in split_row(row, form):
            assert row.advantage is not None
            first, last = tree.turns[part.turns[0]], tree.turns[part.turns[-1]]
            prompt = tree.context(first)
            said = [*tree.context(last), last.message]
            samples.append(
                Sample(
                    prompt=prompt,
                    completion=said[len(prompt) :],
                    input_ids=row.input_ids[: part.end].astype(np.int64),
                    completion_mask=part.mask.astype(np.int64),
                    old_log_probs=np.where(part.mask, row.logprobs[: part.end], np.float32(0)),
                    advantage=float(row.advantage[part.end - 1]),
                    model_version=oldest,
                    group_id=group,
                    metrics=dict(metrics),
                ),
            )
    return samples


def group_number(name: str) -> int:
    """Return a number derived from a group's name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1
