"""The table of turns: what derivers get to read."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings

from tests.conftest import GOLDEN_NAMES, load_golden
from tests.rewards.build import group, session
from tests.strategies import exact_trees
from trajgym.rewards import TurnTable, get_deriver
from trajgym.trajectory import Group, InvalidInput, Member, SessionTree


def golden_table(*names: str, digests: bool = False) -> TurnTable:
    trees = [load_golden(name)[0] for name in names]
    groups = [
        Group(
            id=f"g{t.record.id.replace('_', '')}",
            task="t",
            planned=1,
            members=[Member(t.record.id, 0)],
            sealed=True,
        )
        for t in trees
    ]
    return TurnTable.build(groups, trees, digests=digests)


def test_golden_sessions_become_columns() -> None:
    """Every hand-made session has its turns in the table, with parents, depths and calls."""
    table = golden_table(*GOLDEN_NAMES)
    assert len(table) == sum(len(load_golden(name)[0].turns) for name in GOLDEN_NAMES)
    at = table.place("subagent")
    assert at is not None
    assert (table.parent[at] - at.start).tolist() == [-1 - at.start, 0, 1, 2]
    assert table.depth[at].tolist() == [0, 1, 2, 3]
    assert table.last[at].tolist() == [False, False, False, True]
    at = table.place("parallel_calls")
    assert at is not None
    assert (table.calls_ok[at.start], table.calls_failed[at.start]) == (2, 1)
    assert table.env_reward[at.start] == 0.75
    at = table.place("failed")
    assert at is not None
    assert not table.scored[at].any()
    at = table.place("fork")
    assert at is not None
    assert table.prompt_tokens[at].tolist() == [3, 6, 6]
    assert table.response_tokens[at].tolist() == [2, 2, 3]
    assert table.place("nobody") is None


def test_digests_only_on_demand() -> None:
    """Observations are digested on request; otherwise reading them is an error that names how."""
    table = golden_table("truncated", digests=True)
    tree, _ = load_golden("truncated")
    assert list(table.observation) == [turn.observation_digest for turn in tree.turns]
    assert len(set(table.observation)) == 3
    with pytest.raises(InvalidInput, match="digests=True"):
        _ = golden_table("truncated").observation


def test_columns_are_read_only() -> None:
    """A deriver can't change what the next one reads."""
    with pytest.raises(ValueError, match="read-only"):
        golden_table("fork").env_reward[0] = 1.0


def test_open_group_is_refused() -> None:
    """Derivers run on sealed groups only."""
    tree = session("s", 1.0)
    with pytest.raises(InvalidInput, match="group g is open"):
        TurnTable.build([group(tree, sealed=False)], [tree])


def test_session_given_twice_is_refused() -> None:
    """A session counts once."""
    tree = session("s", 1.0)
    with pytest.raises(InvalidInput, match="session s is given twice"):
        TurnTable.build([group(tree)], [tree, session("t", 1.0), tree])


def test_score_that_is_not_finite_is_refused() -> None:
    """A NaN outcome is named instead of spreading over its group."""
    with pytest.raises(InvalidInput, match="session s: attempt 0 has score nan"):
        TurnTable.build([], [session("s", float("nan"))])


def test_left_failed_and_unverified_do_not_count() -> None:
    """A member that left, one that failed and one without an outcome are not scored."""
    left, failed, unverified = (
        session("left", 1.0),
        session("failed", None, status="failed:env"),
        session("unverified", None),
    )
    table = TurnTable.build(
        [group(left, failed, unverified, left="left")], [left, failed, unverified]
    )
    assert not table.attempt_scored.any()
    assert not table.scored.any()


def test_empty_run_gives_an_empty_table() -> None:
    """No sessions, no turns: nothing breaks."""
    table = TurnTable.build([], [])
    assert len(table) == 0
    assert table.spread(np.zeros(0)).shape == (0,)


@settings(max_examples=100, deadline=None)
@given(exact_trees())
def test_values_of_attempts_reach_exactly_their_turns(tree: SessionTree) -> None:
    """Spreading 1 over attempts marks the scored turns: by mean 1, by sum how many share it."""
    table = TurnTable.build([], [tree])
    ones = np.ones(len(tree.attempts))
    assert np.array_equal(table.spread(ones), table.scored.astype(float))
    holders = [
        sum(
            a.status.scored
            and (turn.attempt == a.index or turn.index in {t.index for t in tree.trajectory(a)})
            for a in tree.attempts
        )
        for turn in tree.turns
    ]
    assert table.spread(ones, "sum").tolist() == holders


@pytest.mark.parametrize("left", ["", "b"])
@pytest.mark.parametrize("name", ["gigpo", "srl", "next_state_votes", "tree_grpo"])
def test_packed_sessions_give_the_same_table(name: str, left: str) -> None:
    """A table put together from packed sessions, sent as JSON, equals one made of the trees."""
    deriver = get_deriver(name)
    trees = [session("a", 1.0, turns=3, forks=[0.0, 1.0]), session("b", 0.5, turns=2)]
    trees += [load_golden(golden)[0] for golden in GOLDEN_NAMES]
    groups = [group(*trees[:2], left=left)]
    packed = [json.loads(json.dumps(deriver.pack(tree))) for tree in trees]
    whole, again = deriver.table(groups, trees), deriver.unpack(groups, packed)
    for field in dataclasses.fields(TurnTable):
        np.testing.assert_equal(getattr(again, field.name), getattr(whole, field.name), field.name)
    with pytest.raises(InvalidInput, match="another deriver"):
        get_deriver("grpo" if name != "tree_grpo" else "gigpo").unpack([], packed)
