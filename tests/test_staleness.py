"""Tokens of old versions: each is dropped or discounted by its own version, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.trajectory import (
    InvalidInput,
    RowSpan,
    Stamp,
    TrainingRow,
    discount_stale,
    drop_stale,
    oldest_trained_version,
    token_staleness,
    validate_row,
)

VERSIONS = st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=30)
"""The version of each token after the first; None where it is an observation."""


def row_of(versions: list[int | None], session: str = "s") -> TrainingRow | None:
    """A row whose turns end where an observation follows, with rewards at their ends."""
    while versions and versions[-1] is None:
        versions = versions[:-1]
    if not versions:
        return None
    low = np.array([-1, *(-1 if v is None else v for v in versions)], dtype=np.int32)
    mask = low >= 0
    begins = mask & ~np.concatenate([[False], mask[:-1]])
    turns = np.where(mask, np.cumsum(begins) - 1, -1).astype(np.int32)
    n = low.size
    row = TrainingRow(
        session=session,
        group="g",
        attempt=0,
        turns=tuple(range(int(begins.sum()))),
        input_ids=np.arange(n, dtype=np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        version_low=low,
        version_high=np.where(mask, low + 1, -1).astype(np.int32),
        turn_ids=turns,
        advantage=np.where(mask, 1.0 + np.arange(n), 0.0).astype(np.float32),
        advantage_stamp=Stamp("test", {"a": 1}),
        reward_stamp=Stamp("test", {}),
        reward=np.zeros(n, dtype=np.float32),
        spans=tuple(
            RowSpan(int(turns[at]), 0, "reasoning", int(at), int(at) + 1)
            for at in np.flatnonzero(begins)
        ),
    )
    assert row.reward is not None
    row.reward[row.turn_ends] = 0.5
    validate_row(row)
    return row


@given(versions=VERSIONS, version=st.integers(0, 8), most=st.integers(0, 8))
def test_exactly_the_old_tokens_are_dropped(
    versions: list[int | None], version: int, most: int
) -> None:
    """Fresh tokens keep their place, ids and values; the row stays valid for every trainer."""
    row = row_of(versions)
    if row is None:
        return
    fresh = [at for at, v in enumerate([None, *versions]) if v is not None and version - v <= most]
    found = drop_stale([row], version, most)
    if not fresh:
        assert found.rows == []
        assert "more than" in found.dropped[0].reason
        return
    (kept,) = found.rows
    assert found.dropped == []
    validate_row(kept)
    assert np.flatnonzero(kept.loss_mask).tolist() == fresh
    assert kept.advantage is not None
    assert row.advantage is not None
    for name in ("input_ids", "logprobs", "version_low", "version_high", "turn_ids", "advantage"):
        assert getattr(kept, name)[fresh].tolist() == getattr(row, name)[fresh].tolist()
    assert len(kept) == fresh[-1] + 1
    assert kept.input_ids.tolist() == row.input_ids[: len(kept)].tolist()
    assert kept.weight == 1.0


@given(versions=VERSIONS, version=st.integers(0, 8), free=st.integers(0, 4))
def test_each_token_is_discounted_by_its_own_age(
    versions: list[int | None], version: int, free: int
) -> None:
    """The factor's power is the token's age; the stamp tells what was done."""
    row = row_of(versions)
    if row is None:
        return
    found = discount_stale(row, version, 0.5, free=free)
    assert found.advantage is not None
    assert row.advantage is not None
    validate_row(found)
    for at, v in enumerate([None, *versions][: len(row)]):
        power = 0 if v is None else max(0, max(0, version - v) - free)
        assert found.advantage[at] == row.advantage[at] * np.float32(0.5**power)
    assert found.advantage_stamp is not None
    assert found.advantage_stamp.settings == {
        "a": 1,
        "stale_factor": 0.5,
        "stale_free": free,
        "stale_version": version,
    }


def test_weights_are_those_of_what_is_left() -> None:
    """Rows of one session share its weight by the tokens that are still trained."""
    first, second, other = row_of([0, 0, 5, 5]), row_of([5, 5]), row_of([0, 5], "t")
    assert first is not None
    assert second is not None
    assert other is not None
    found = drop_stale([first, other, second], 5, 2)
    assert [row.weight for row in found.rows] == [0.5, 1.0, 0.5]
    assert token_staleness(first, 5).tolist() == [-1, 5, 5, 0, 0]
    assert oldest_trained_version([second, first]) == 0
    assert oldest_trained_version([second]) == 5
    with pytest.raises(InvalidInput, match="without a trained token"):
        oldest_trained_version([])


def test_what_can_not_be_discounted_is_refused() -> None:
    """A row without advantages, or a factor that is none."""
    row = row_of([0])
    assert row is not None
    with pytest.raises(InvalidInput, match=r"is 1\.5; it must be in"):
        discount_stale(row, 1, 1.5)
    row.advantage = row.advantage_stamp = None
    with pytest.raises(InvalidInput, match="no advantages"):
        discount_stale(row, 1, 0.5)
