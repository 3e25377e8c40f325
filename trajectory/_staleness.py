"""Tokens of old policy versions in training rows: measured, dropped or discounted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trajgym.trajectory._errors import InvalidInput
from trajgym.trajectory._rows import Dropped, Rows, share_weight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory._rows import TrainingRow
    from trajgym.trajectory._tokens import FloatArray, IntArray

__all__ = ["discount_stale", "drop_stale", "oldest_trained_version", "token_staleness"]


def oldest_trained_version(rows: Iterable[TrainingRow]) -> int:
    """Return the oldest policy version that may have sampled a trained token of these rows.

    For trainers that take one version for a session or a row.

    Args:
        rows: at least one.

    Raises:
        InvalidInput: no token is trained.
    """
    oldest = [int(row.version_low[row.loss_mask].min()) for row in rows if row.loss_mask.any()]
    if not oldest:
        raise InvalidInput("rows without a trained token have no oldest version")
    return min(oldest)


def token_staleness(row: TrainingRow, version: int) -> IntArray:
    """Return int32 ``[T]``: how many versions each trained token is behind; -1 elsewhere.

    Of a token whose version is known as a range only, the oldest version counts. A token of a newer
    version than the given one is 0 behind.

    Args:
        row: the row.
        version: the trainer's policy version.
    """
    behind = np.maximum(version - row.version_low, 0)
    return np.where(row.loss_mask, behind, -1).astype(np.int32)


def drop_stale(rows: Iterable[TrainingRow], version: int, most: int) -> Rows:
    """Return the rows without training on tokens that are more than ``most`` versions behind.

    Such tokens stay in ``input_ids`` as context of later ones, and lose their mask, log-prob,
    version, advantage and reward; a row is cut after its last trained token. Rows without any
    left are dropped by name. The weights of a session's rows are those of what is left.

    Args:
        rows: rows of any sessions, in any order; not changed.
        version: the trainer's policy version.
        most: versions that a trained token may be behind.
    """
    kept: list[TrainingRow] = []
    dropped: list[Dropped] = []
    sessions: dict[str, list[TrainingRow]] = defaultdict(list)
    for row in rows:
        fresh = _without(row, token_staleness(row, version) > most)
        if fresh is None:
            reason = f"all its tokens are more than {most} versions behind"
            dropped.append(Dropped(row.session, row.attempt, reason))
            continue
        kept.append(fresh)
        sessions[row.session].append(fresh)
    for own in sessions.values():
        share_weight(own)
    return Rows(kept, dropped)


def discount_stale(row: TrainingRow, version: int, factor: float, *, free: int = 0) -> TrainingRow:
    """Return the row with the advantages of old tokens multiplied by a power of ``factor``.

    A token that is ``s`` versions behind gets ``factor ** max(s - free, 0)`` of its advantage; the
    stamp has the factor, ``free`` and the version.

    Args:
        row: a row with advantages; not changed.
        version: the trainer's policy version.
        factor: in (0, 1].
        free: versions that a token may be behind without a discount.

    Raises:
        InvalidInput: the row has no advantages, or ``factor`` is out of range.
    """
    if row.advantage is None or row.advantage_stamp is None:
        raise InvalidInput(f"row of session {row.session} has no advantages to discount")
    if not 0 < factor <= 1:
        raise InvalidInput(f"the discount of stale tokens is {factor}; it must be in (0, 1]")
    behind = np.maximum(token_staleness(row, version) - free, 0)
    advantage = (row.advantage * np.power(factor, behind)).astype(np.float32)
    stamp = row.advantage_stamp
    mark = {"stale_factor": factor, "stale_free": free, "stale_version": version}
    stamp = stamp._replace(settings={**stamp.settings, **mark})
    return replace(row, advantage=advantage, advantage_stamp=stamp)


def _without(row: TrainingRow, old: npt.NDArray[np.bool_]) -> TrainingRow | None:
    """Return a row that does not train on some tokens; the same if there are none; None if all."""
    if not old.any():
        return replace(row)
    mask = row.loss_mask & ~old
    if not mask.any():
        return None
    end = int(np.flatnonzero(mask)[-1]) + 1
    mask = mask[:end]
    turn_ids = np.where(mask, row.turn_ids[:end], -1).astype(np.int32)
    turns = tuple(turn for turn in row.turns if (turn_ids == turn).any())
    return replace(
        row,
        turns=turns,
        input_ids=row.input_ids[:end],
        loss_mask=mask,
        logprobs=np.where(mask, row.logprobs[:end], 0.0).astype(np.float32),
        version_low=np.where(mask, row.version_low[:end], -1).astype(np.int32),
        version_high=np.where(mask, row.version_high[:end], -1).astype(np.int32),
        turn_ids=turn_ids,
        reward=_masked(row.reward, mask),
        advantage=_masked(row.advantage, mask),
        images=tuple(image for image in row.images if image.end <= end),
        spans=tuple(
            span._replace(end=min(span.end, end))
            for span in row.spans
            if span.start < end and mask[span.start : span.end].any()
        ),
    )


def _masked(values: FloatArray | None, mask: npt.NDArray[np.bool_]) -> FloatArray | None:
    return None if values is None else np.where(mask, values[: mask.size], 0.0).astype(np.float32)
