"""Values over a whole run: equal to those of one table, in bounded memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rewards.build import group, session
from tests.rewards.test_derivers import SHIPPED
from trajgym.adapters import export
from trajgym.rewards import (
    GRPO,
    MSGRPO,
    DirectiveHints,
    GiGPO,
    MissingSignals,
    NextStateVotes,
    OutcomeReward,
    StepReward,
    Stepwise,
    WeightedSum,
    apply,
    as_deriver,
    derive_run,
    derive_scope,
)
from trajgym.rewards import _run_values as run_values
from trajgym.rewards._check import _group as generated
from trajgym.rewards._check import _groups as sealed
from trajgym.trajectory import (
    Group,
    InvalidInput,
    Member,
    Run,
    SessionTree,
    Store,
    StoreError,
    build_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trajgym.rewards import Deriver

COMBINED: list[Deriver] = [
    as_deriver(["outcome", {"name": "tool_calls", "weight": 0.5}]),
    as_deriver({"name": "stepwise", "rewards": ["outcome", "signal_progress"]}),
    WeightedSum(derivers=(GRPO(), MSGRPO(variant="official")), weights=(1.0, 0.5)),
]


def put(store: Store, tree: SessionTree) -> None:
    store.begin_session(tree.record)
    for turn in tree.turns:
        store.append_turn(tree.record.id, turn)
    for attempt in tree.attempts:
        store.put_attempt(tree.record.id, attempt)


def write(path: Path, trees: Iterable[SessionTree], groups: Iterable[Group], files: int) -> None:
    """Write a run whose sessions lie in several files in turn, with the groups in each."""
    stores = [Store(path / f"part-{n}.sqlite") for n in range(files)]
    for at, tree in enumerate(trees):
        put(stores[at % files], tree)
    for one in groups:
        for store in stores:
            store.put_group(one)
    for store in stores:
        store.close()


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_values_of_a_run_are_those_of_one_table(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every deriver, with its groups spread over files and in any order, open ones left out."""
    seed = data.draw(st.integers(0, 1000))
    count = data.draw(st.integers(1, 4))
    trees = [tree for number in range(count) for tree in generated(number, seed)]
    groups = sealed(trees)
    for one in groups:
        one.sealed = data.draw(st.sampled_from([True, True, True, False]))
        one.members = [
            member._replace(left=data.draw(st.sampled_from(["", "", "", "stale"])))
            for member in one.members
        ]
    groups[0].members.append(Member("not here", 9))
    shuffled = data.draw(st.permutations(trees))
    path = tmp_path_factory.mktemp("run")
    write(path, shuffled, groups, data.draw(st.integers(1, 3)))
    whole = [one for one in groups if one.sealed]
    members = {member.session for one in whole for member in one.members}
    size = data.draw(st.integers(1, 6))
    with pytest.MonkeyPatch.context() as patch, Run(path) as run:
        patch.setattr(run_values, "_SESSIONS", size)
        for deriver in [*SHIPPED, *COMBINED]:
            held = [tree for tree in run.sessions() if tree.record.id in members]
            expected = deriver.derive(deriver.table(whole, held))
            (found,) = derive_run(run, deriver)
            assert (found.kind, found.stamp) == (type(expected), expected.stamp)
            assert {name for name, _ in found.sessions()} == {tree.record.id for tree in held}
            for tree in held:
                name = tree.record.id
                left, right = found.session(name), expected.session(name)
                np.testing.assert_array_equal(left.turns, right.turns)
                assert left.named_spans() == right.named_spans()
                rows = build_rows(tree).rows
                for one, other in zip(apply(rows, found), apply(rows, expected), strict=True):
                    for column in ("reward", "advantage"):
                        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
            if held:
                around = derive_scope(run, deriver, held[0].record.id)
                np.testing.assert_array_equal(
                    around.of(held[0].record.id), expected.of(held[0].record.id)
                )


def test_several_derivers_share_one_pass(tmp_path: Path) -> None:
    """Each gets the values that it has alone, from a table with the columns of all."""
    trees = [tree for number in range(3) for tree in generated(number, 1)]
    write(tmp_path, trees, sealed(trees), 2)
    with Run(tmp_path) as run:
        derivers: list[Deriver] = [OutcomeReward(), GiGPO(), DirectiveHints(over="span")]
        together = derive_run(run, *derivers)
        for deriver, values in zip(derivers, together, strict=True):
            (alone,) = derive_run(run, deriver)
            for tree in trees:
                left, right = alone.session(tree.record.id), values.session(tree.record.id)
                assert left.turns.tolist() == right.turns.tolist()
                assert left.named_spans() == right.named_spans()
        assert derive_run(run) == []


def test_what_has_no_values_says_so(tmp_path: Path) -> None:
    """A session of an open group or of none is named by the error, for one and for all."""
    trees = [session("a", 1.0), session("b", 0.0, group="h"), session("c", 0.0, group=None)]
    groups = [group(trees[0]), group(trees[1], name="h", sealed=False)]
    write(tmp_path, trees, groups, 1)
    with Run(tmp_path) as run:
        (values,) = derive_run(run, GRPO())
        assert [name for name, _ in values.sessions()] == ["a"]
        for name in ("b", "c", "nowhere"):
            with pytest.raises(InvalidInput, match=f"session {name} has no advantages"):
                values.session(name)
            with pytest.raises(InvalidInput, match=f"session {name} is in no sealed group"):
                derive_scope(run, GRPO(), name)


def test_missing_signals_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    """The error counts all sessions that lack something, however many tables there are."""
    trees = [session(f"s{at}", 1.0, turns=2, group=f"g{at}") for at in range(5)]
    for tree in trees:
        tree.turns[0].observation = [{"role": "user", "content": "next"}]
    trees[3].turns[0].signals = {"vote": 1}
    write(tmp_path, trees, [group(tree, name=f"g{at}") for at, tree in enumerate(trees)], 1)
    with pytest.MonkeyPatch.context() as patch, Run(tmp_path) as run:
        patch.setattr(run_values, "_SESSIONS", 1)
        with pytest.raises(MissingSignals, match="of 5 sessions, 4 have no signal 'vote'") as error:
            derive_run(run, StepReward(), NextStateVotes())
        assert error.value.lacking == {"no signal 'vote'": 4}
        _, votes = derive_run(run, StepReward(), NextStateVotes(), missing_signals="zero")
        assert votes.session("s3").turns.tolist() == [1.0, 0.0]
        assert votes.session("s0").turns.tolist() == [0.0, 0.0]
        assert votes.lacking == {"no signal 'vote'": 4}


@pytest.mark.parametrize(
    "derivers", [[GRPO()], [OutcomeReward(), Stepwise()]], ids=["group", "rows"]
)
def test_memory_does_not_grow_with_the_run(tmp_path: Path, derivers: list[Deriver]) -> None:
    """Deriving and exporting four times as many sessions takes about the same memory."""
    peaks = []
    for sessions in (64, 256, 1024):  # the first imports what is imported when it is needed
        path = tmp_path / str(sessions)
        trees = (one for number in range(sessions // 4) for one in generated(number, number))
        with Store(path) as store:
            members: list[Member] = []
            for tree in trees:
                # No two sessions share their id, unlike those that are generated.
                put(store, tree)
                members.append(Member(tree.record.id, len(members)))
                if len(members) == 4:
                    assert tree.record.group is not None
                    one = Group(
                        id=tree.record.group, task="t", planned=4, members=members, sealed=True
                    )
                    store.put_group(one).wait()
                    members = []
        with Run(path) as run:
            gc.collect()
            tracemalloc.start()
            try:
                values = derive_run(run, *derivers)
                if len(derivers) > 1:
                    report = export(
                        "rows", run.sessions(), run.groups(), path / "out", values=values
                    )
                    assert report.written > sessions
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    assert peaks[2] < 1.5 * peaks[1], peaks


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the temporary file can't grow, the error says where it is and what to do."""
    trees = [tree for number in range(60) for tree in generated(number, 0)]
    write(tmp_path, trees, sealed(trees), 1)
    create = run_values._Scratch.__init__

    def small(self: Any, *statements: str) -> None:
        create(self, *statements)
        self.execute("PRAGMA max_page_count = 1")

    monkeypatch.setattr(run_values._Scratch, "__init__", small)
    with Run(tmp_path) as run, pytest.raises(StoreError, match=r"full; set TMPDIR"):
        derive_run(run, GRPO())
