"""From training rows to the samples of TRL's asynchronous trainer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from trajgym.trajectory import InvalidInput

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
"""``turn``: a sample for each turn. ``row``: one for each row, whose turns must have the same
advantage. ``auto``: ``row`` where that is possible."""


class Part(NamedTuple):
    """What one sample trains of a row: its ids up to ``end``, those in ``mask``."""

    turns: tuple[int, ...]
    end: int
    mask: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Sample:
    """What TRL's ``RolloutSample`` holds, for processes that don't import TRL."""

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
        """Return it as a ``RolloutSample``."""
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        return RolloutSample(**{name: getattr(self, name) for name in self.__slots__})


def split_row(row: TrainingRow, form: Form = "auto") -> Iterator[Part]:
    """Yield the parts of a row that have one advantage each; together they train the row once.

    Raises:
        InvalidInput: the row has no advantages, or several, and ``form`` is ``row``.
    """
    if row.advantage is None:
        raise InvalidInput(f"row of session {row.session}: no advantages; apply a deriver's first")
    ends = row.turn_ends
    values = row.advantage[ends]
    same = bool((values == values[0]).all())
    if form == "row" and not same:
        raise InvalidInput(
            f"row of session {row.session}: its turns have the advantages {values.tolist()}, and "
            "TRL takes one per sample: use form='auto' or 'turn', or a deriver of whole attempts",
        )
    if same and form != "turn":
        yield Part(row.turns, len(row), row.loss_mask)
        return
    for turn, end in zip(row.turns, (ends + 1).tolist(), strict=True):
        yield Part((turn,), end, row.turn_ids[:end] == turn)


def rollout_samples(
    tree: SessionTree, rows: Sequence[TrainingRow], *, form: Form = "auto"
) -> list[Any]:
    """Return a session's rows as ``RolloutSample`` objects of TRL.

    All of them have the same ``model_version``: the oldest that can have sampled one of the
    session's trained tokens. TRL drops stale samples one by one, so no session loses only the
    turns that came first. Log-probs are 0 where a sample does not train.

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
    """Return what :func:`rollout_samples` makes its objects of."""
    if not rows:
        return []
    oldest = min(int(row.version_low[row.loss_mask].min()) for row in rows)
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
    """Return a number for a group's name, the same in every run."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1
