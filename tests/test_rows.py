"""Training rows: every sampled token once, exactly as sampled, and nothing else."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.conftest import load_golden
from tests.strategies import exact_trees
from trajgym.trajectory import (
    ImageRef,
    InvalidRow,
    RowSpan,
    Sampling,
    SessionTree,
    Stamp,
    Status,
    TrainingRow,
    UnsupportedModality,
    Usage,
    build_rows,
    validate_row,
)

COLUMNS = ("input_ids", "loss_mask", "version_low", "version_high")


def test_golden_rows(golden: tuple[SessionTree, dict[str, Any]]) -> None:
    """Hand-made sessions give the rows that were computed by hand."""
    tree, expect = golden
    if expect.get("text"):
        with pytest.raises(InvalidRow, match="turn 0 is a text turn"):
            build_rows(tree)
        return
    if expect.get("images"):
        with pytest.raises(UnsupportedModality):
            build_rows(tree)
    built = build_rows(tree, images=expect.get("images", False))
    assert [list(row.turns) for row in built.rows] == [row["turns"] for row in expect["rows"]]
    for row, wanted in zip(built.rows, expect["rows"], strict=True):
        validate_row(row)
        for name in COLUMNS:
            if name in wanted:
                assert getattr(row, name).astype(int).tolist() == wanted[name], name
        assert [list(image) for image in row.images] == wanted.get("images", [])
    assert bool(built.dropped) == expect.get("unscored", False)


def test_unscored_attempt_is_dropped_by_name() -> None:
    """A failure gives no row, and the report names the part and the cause."""
    tree, _ = load_golden("failed")
    (dropped,) = build_rows(tree).dropped
    assert (dropped.session, dropped.attempt) == ("failed", 0)
    assert "failed:sandbox: the Docker engine closed the connection" in dropped.reason


def test_shared_prefix_of_a_failed_attempt_is_trained_with_its_rival() -> None:
    """A turn recorded by an attempt that failed later still belongs to the scored fork."""
    tree, _ = load_golden("fork")
    tree.attempts[0].outcome = None
    tree.attempts[0].status = Status.parse("failed:env")
    (row,) = build_rows(tree).rows
    assert (row.attempt, row.turns) == (1, (0, 2))


def test_text_turn_among_exact_ones_is_refused() -> None:
    """One text turn in a scored attempt refuses the session, naming the turn and the policy."""
    tree, _ = load_golden("truncated")
    tree.turns[1].tokens = None
    tree.turns[1].policy = "openai:gpt"
    with pytest.raises(InvalidRow, match=r"turn 1 is a text turn \(policy 'openai:gpt'\)"):
        build_rows(tree)


def test_a_turn_for_which_nothing_was_sampled_is_left_out() -> None:
    """It is named, ends its row, and the turns before it are trained as they are without it."""
    tree, _ = load_golden("truncated")
    tree.turns[2].tokens = None
    tree.turns[2].message = {"role": "assistant", "content": ""}
    tree.turns[2].calls = []
    tree.turns[2].usage = Usage(prompt_tokens=9, completion_tokens=0)
    built = build_rows(tree)
    assert [row.turns for row in built.rows] == [(0, 1)]
    assert [d.reason for d in built.dropped] == ["turn 2: the model sampled nothing"]
    validate_row(built.rows[0])
    tree.turns[2].usage = Usage(prompt_tokens=9, completion_tokens=1)  # an id is missing
    with pytest.raises(InvalidRow, match="turn 2 is a text turn"):
        build_rows(tree)


@pytest.mark.parametrize("where", ["context", "observation"])
def test_image_in_an_exact_session_is_refused(where: str) -> None:
    """Images whose tokens are not mapped are refused instead of trained as text."""
    tree, _ = load_golden("truncated")
    image = {"type": "image_url", "image_url": {"url": "blob:00"}}
    getattr(tree.turns[0], where)[0]["content"] = [image]
    with pytest.raises(UnsupportedModality, match="'image_url' part"):
        build_rows(tree)


def test_image_after_the_last_turn_does_not_matter() -> None:
    """An observation that no policy saw is not in any row, whatever it shows."""
    tree, _ = load_golden("truncated")
    tree.turns[2].observation[0]["content"] = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert len(build_rows(tree).rows) == 1


def test_turn_without_sampled_tokens_is_named() -> None:
    """A turn of inserted ids alone is not trained, and is reported."""
    tree, _ = load_golden("truncated")
    tokens = tree.turns[2].tokens
    assert tokens is not None
    tokens.segments = tuple(s._replace(sampled=False, version_low=-1) for s in tokens.segments)
    built = build_rows(tree)
    assert built.rows[0].turns == (0, 1)
    assert [d.reason for d in built.dropped] == ["turn 2 has no sampled token"]
    validate_row(built.rows[0])


def test_sampling_is_kept_only_where_turns_agree() -> None:
    """Mixed temperatures are not passed off as one."""
    tree, _ = load_golden("truncated")
    for turn in tree.turns:
        turn.sampling = Sampling(temperature=0.7, logprob_mode="processed")
    row = build_rows(tree).rows[0]
    assert (row.temperature, row.logprob_mode) == (0.7, "processed")
    tree.turns[1].sampling = Sampling(temperature=1.0, logprob_mode="processed")
    row = build_rows(tree).rows[0]
    assert (row.temperature, row.logprob_mode) == (None, "processed")


def scored_turns(tree: SessionTree) -> set[int]:
    """Turns of scored attempts, told apart from the implementation's way."""
    turns: set[int] = set()
    for attempt in tree.attempts:
        if attempt.status.kind in {"completed", "truncated"}:
            turns |= {t.index for t in tree.turns if t.attempt == attempt.index}
            index = attempt.leaf
            while index is not None:
                turns.add(index)
                index = tree.turns[index].parent
    return turns


@settings(max_examples=300, deadline=None)
@given(exact_trees())
def test_every_sampled_token_is_trained_exactly_once(tree: SessionTree) -> None:
    """Each sampled token of scored attempts has one place, with its own log-prob and versions."""
    rows = build_rows(tree).rows
    trained: Counter[tuple[int, int]] = Counter()
    for row in rows:
        validate_row(row)
        for position in np.flatnonzero(row.loss_mask):
            turn = tree.turns[row.turn_ids[position]]
            tokens = turn.tokens
            assert tokens is not None
            offset = int(position) - tree.prompt(turn).size
            assert tokens.sampled_mask[offset]
            assert row.input_ids[position] == tokens.response_ids[offset]
            assert row.logprobs[position] == tokens.logprobs[offset]
            assert row.version_low[position] == tokens.version_low[offset]
            assert row.version_high[position] == tokens.version_high[offset]
            trained[turn.index, offset] += 1
    expected = {
        (index, int(offset))
        for index in scored_turns(tree)
        for offset in np.flatnonzero(tree.turns[index].tokens.sampled_mask)  # type: ignore[union-attr]
    }
    assert set(trained) == expected
    assert set(trained.values()) <= {1}


@settings(max_examples=200, deadline=None)
@given(exact_trees())
def test_rows_are_what_the_engine_saw(tree: SessionTree) -> None:
    """A row starts with the sequence of each of its turns, and ends at a trained token."""
    rows = build_rows(tree).rows
    for row in rows:
        assert row.loss_mask[-1]
        assert not row.loss_mask[0]
        for index in row.turns:
            sequence = tree.sequence(tree.turns[index])[: len(row)]
            assert np.array_equal(row.input_ids[: sequence.size], sequence)
    assert not rows or sum(row.weight for row in rows) == pytest.approx(1.0)


@settings(max_examples=100, deadline=None)
@given(exact_trees())
def test_building_rows_changes_nothing(tree: SessionTree) -> None:
    """The session reads the same after its rows were built."""
    before = copy.deepcopy(tree.to_json())
    build_rows(tree)
    assert tree.to_json() == before


def good_row() -> TrainingRow:
    row = build_rows(load_golden("two_versions")[0]).rows[0]
    row.reward = np.zeros(len(row), np.float32)
    row.reward[-1] = row.reward[5] = 0.5
    row.reward_stamp = Stamp("outcome", {})
    row.advantage = np.where(row.loss_mask, np.float32(0.25), np.float32(0))
    row.advantage_stamp = Stamp("grpo", {}, "g")
    return row


def put(name: str, position: int, value: float) -> Any:
    def change(row: TrainingRow) -> None:
        getattr(row, name)[position] = value

    return change


def setting(name: str, value: Any) -> Any:
    return lambda row: setattr(row, name, value)


BAD = [
    (put("loss_mask", 0, 1), "loss_mask.0. is set"),
    (put("loss_mask", -1, 0), "ends on a masked token"),
    (put("loss_mask", 6, 1), "turn_ids must be"),
    (put("turn_ids", 3, 1), "turns are"),
    (put("input_ids", 2, -4), "negative id"),
    (put("logprobs", 3, np.nan), "not all finite"),
    (put("logprobs", 3, 0.5), "above 0"),
    (put("logprobs", 6, -0.5), "0.0 where"),
    (put("version_low", 6, 3), "exactly where"),
    (put("version_high", 3, -1), "exactly where"),
    (put("version_low", 3, 4), "above version_high"),
    (put("version_low", 6, -2), "-1 where"),
    (put("reward", 7, 0.5), "reward at token 7"),
    (put("reward", -1, np.inf), "reward is not all finite"),
    (put("advantage", 6, 0.5), "untrained token"),
    (put("advantage", 3, np.nan), "advantage is not all finite"),
    (setting("reward_stamp", None), "go together"),
    (setting("advantage", None), "go together"),
    (setting("turns", (0,)), "turns are"),
    (setting("weight", 0.0), "weight"),
    (setting("logprobs", np.zeros(13)), "logprobs must be float32"),
    (setting("loss_mask", np.zeros(12, bool)), r"loss_mask must be bool of shape \(13,\)"),
    (setting("input_ids", np.zeros(1, np.int32)), "needs a prompt token"),
    (setting("images", (ImageRef(12, 14, "ab", "p"),)), "spans"),
    (setting("images", (ImageRef(2, 5, "ab", "p"),)), "are trained"),
    (setting("spans", (RowSpan(0, 0, "answer", 12, 14),)), "does not lie in a trained turn"),
]


def test_good_row_passes() -> None:
    """The row that the bad ones are made from is fine."""
    validate_row(good_row())


@pytest.mark.parametrize(("change", "message"), BAD)
def test_row_that_a_trainer_would_mangle_is_refused(change: Any, message: str) -> None:
    """Each way to break an invariant is refused, with the session and what is wrong."""
    row = good_row()
    change(row)
    with pytest.raises(InvalidRow, match=message) as caught:
        validate_row(row)
    assert "session two_versions" in str(caught.value)
