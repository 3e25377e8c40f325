"""Exports for RL trainers: the arrays they get, and what is left out."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from tests.adapters.build import exact_session, golden_run, groups_of
from tests.conftest import load_golden
from tests.strategies import exact_trees
from trajgym.adapters import export, group_rows, list_exports, read_rows
from trajgym.adapters.interchange import get_format, list_formats
from trajgym.envs import Env, EnvSpec, ToolResult, register
from trajgym.rewards import GRPO, Advantages, OutcomeReward, Rewards, ToolPO, TurnTable, apply
from trajgym.rollout import ScriptedPolicy, SealedGroup, TokenPolicy, call, collect
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import (
    InvalidInput,
    Member,
    Run,
    SessionTree,
    Stamp,
    Task,
    TrainingRow,
    build_rows,
    validate_row,
)
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS = (
    "input_ids",
    "loss_mask",
    "logprobs",
    "version_low",
    "version_high",
    "turn_ids",
    "reward",
    "advantage",
)


UNRECORDED = ["unknown-logprobs"]
"""The golden sessions do not say how they were sampled."""


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def same(left: TrainingRow, right: TrainingRow) -> bool:
    for name in TrainingRow.__slots__:
        a, b = getattr(left, name), getattr(right, name)
        if name in ARRAYS and a is not None:
            if b is None or a.dtype != b.dtype or not np.array_equal(a, b):
                return False
        elif a != b:
            return False
    return True


def derived(trees: list[SessionTree]) -> list[Rewards | Advantages]:
    table = TurnTable.build(groups_of(*trees), trees)
    return [OutcomeReward().derive(table), GRPO().derive(table)]


def test_rows_survive_the_round_trip(tmp_path: Path) -> None:
    """What `rows` wrote reads back as the same rows, arrays, stamps and all."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0, sample=1, turns=2)]
    values = derived(trees)
    expected = [row for tree in trees for row in build_rows(tree).rows]
    for one in values:
        expected = apply(expected, one)
    report = export("rows", trees, groups_of(*trees), tmp_path, values=values)
    found = list(read_rows(tmp_path / "rows.parquet"))
    assert report.written == len(found) == 2
    assert report.files == [tmp_path / "rows.parquet"]
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))
    assert found[0].advantage_stamp == Stamp("grpo", {"variant": "paper", "eps": None}, "g")


async def test_values_over_spans_survive_the_round_trip(tmp_path: Path) -> None:
    """Rows keep their spans: those with values over tool calls read back, and are still valid."""

    def count(asked: FakeCall) -> Any:
        if asked.turn == 2:
            return call("finish")
        return call("add") if (asked.seed or 0) % 2 else call("refuse")

    spec = EnvSpec(id="tests.worlds:Counter")
    await collect(spec, [Task(id="t")], TokenPolicy.fake(count), tmp_path / "run", samples=4)
    with Run(tmp_path / "run") as run:
        groups, trees = list(run.groups()), list(run.sessions())
    deriver = ToolPO()
    values = deriver.derive(deriver.table(groups, trees))
    assert np.any(values.spans)
    expected = [row for tree in trees for row in apply(build_rows(tree).rows, values)]
    export("rows", trees, groups, tmp_path, values=[values])
    found = list(read_rows(tmp_path / "rows.parquet"))
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))
    for row in found:
        validate_row(row)
        assert [span.kind for span in row.spans] == ["tool_call"] * 3
        assert row.advantage is not None
    again = [row for tree in trees for row in build_rows(tree).rows]
    for row, applied in zip(found, apply(again, values), strict=True):
        assert np.array_equal(row.advantage, applied.advantage)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(tree=exact_trees())
def test_any_session_survives_the_round_trip(
    tree: SessionTree, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Forks, rewrites, sub-agents and inserted ids come back as they were built."""
    out = tmp_path_factory.mktemp("rows")
    built = build_rows(tree)
    report = export("rows", [tree], [], out)
    found = list(read_rows(out / "rows.parquet"))
    assert all(same(a, b) for a, b in zip(built.rows, found, strict=True))
    assert report.dropped == built.dropped


def test_golden_sessions_are_exported_or_named(tmp_path: Path) -> None:
    """Each hand-made session is in the file or in the report, by name."""
    trees, groups = golden_run()
    report = export("rows", trees, groups, tmp_path)
    written = {row.session for row in read_rows(tmp_path / "rows.parquet")}
    dropped = {d.session: d.reason for d in report.dropped}
    assert written == {t.record.id for t in trees} - {"screenshot", "failed"}
    assert set(dropped) == {"screenshot", "failed"}
    assert "text turn" in dropped["screenshot"]
    assert "failed:sandbox" in dropped["failed"]


def test_members_that_left_and_open_groups_stay_out(tmp_path: Path) -> None:
    """A stale member and a session of an open group are left out by name."""
    trees = [
        exact_session("a", 1.0),
        exact_session("b", 0.0, sample=1),
        exact_session("c", 1.0, group="h"),
    ]
    closed, open_group = groups_of(*trees)
    closed.members[1] = Member("b", 1, "stale")
    open_group.sealed = False
    report = export("rows", trees, [closed, open_group], tmp_path)
    assert [row.session for row in read_rows(tmp_path / "rows.parquet")] == ["a"]
    assert [(d.session, d.reason) for d in report.dropped] == [
        ("b", "left its group (stale)"),
        ("c", "its group is not sealed"),
    ]


async def test_sessions_left_out_for_the_same_reason_are_counted_together(
    tmp_path: Path,
) -> None:
    """A reason holds no session's or group's id and no score: a whole run has a few reasons."""
    register("test/scores")(_Scores)
    tasks = [Task(id=f"t{n}") for n in range(4)]
    spec, run = EnvSpec(id="test/scores"), tmp_path / "run"
    await collect(spec, tasks, ScriptedPolicy(["done"]), run, samples=2)
    with Run(run) as found:
        groups, trees = list(found.groups()), list(found.sessions())
    values = {"rows": [OutcomeReward().derive(TurnTable.build(groups, trees))]}
    for name, count in {"rows": 8, "sft": 8, "in-context": 8, "preference": 4}.items():
        report = export(name, trees, groups, tmp_path, values=values.get(name, ()))
        assert len(report.dropped) == count
        assert len({dropped.reason for dropped in report.dropped}) == 1, name
    reasons: Counter[str] = Counter()
    for group in groups:
        members = [tree for tree in trees if tree.record.group == group.id]
        reasons += group_rows(SealedGroup(group, members), None).dropped
    assert list(reasons.values()) == [8]


class _Scores(Env):
    """Every task has a score of its own, below that of success."""

    def reset(self, task: Task, seed: int | None) -> str:
        self.score = int(task.id[1:]) / 10
        return "Say done."

    def respond(self, message: Any) -> ToolResult:
        return ToolResult(done=True)

    def verify(self) -> float:
        return self.score


def test_a_session_of_no_group_has_no_values(tmp_path: Path) -> None:
    """It is left out with that reason, as values are derived within groups."""
    first, alone = exact_session("a", 1.0), exact_session("b", 1.0, group=None)
    groups = groups_of(first)
    rewards = OutcomeReward().derive(TurnTable.build(groups, [first]))
    report = export("rows", [first, alone], groups, tmp_path, values=rewards)
    said = "belongs to no group, and values are derived in groups"
    assert [(d.session, d.reason) for d in report.dropped] == [("b", said)]


def test_session_without_values_is_named(tmp_path: Path) -> None:
    """A session that the deriver did not get is not exported with zeros."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0, sample=1)]
    values = OutcomeReward().derive(TurnTable.build(groups_of(trees[0]), trees[:1]))
    report = export("rows", trees, groups_of(*trees), tmp_path, values=values)
    assert [(d.session, d.reason) for d in report.dropped] == [("b", "has no rewards")]


def test_synthetic_rows_say_so(tmp_path: Path) -> None:
    """Rows of a fake engine are marked in every RL export and counted in the report."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0, sample=1)]
    trees[0].turns[1].synthetic = True
    rewards, advantages = derived(trees)
    for name in ("rows", "trl-grpo", "verl", "areal"):
        value = advantages if name == "trl-grpo" else rewards
        refused = export(name, trees, groups_of(*trees), tmp_path, values=value)
        if name != "rows":
            assert [one.reason[:9] for one in refused.dropped] == ["synthetic"]
        allow = ["synthetic"]
        report = export(name, trees, groups_of(*trees), tmp_path, values=value, allow=allow)
        marks = [row["synthetic"] for row in read(report.files[0])]
        assert marks == [True, False]
        assert report.synthetic == 1


def test_trl_one_sample_per_row_where_turns_agree(tmp_path: Path) -> None:
    """GRPO gives all turns of an attempt one advantage: each row is one whole sample."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0, sample=1, turns=2)]
    export("trl-grpo", trees, groups_of(*trees), tmp_path, values=derived(trees)[1])
    first, second = read(tmp_path / "trl-grpo.parquet")
    row = build_rows(trees[0]).rows[0]
    assert first["input_ids"] == row.input_ids.tolist()
    assert first["completion_mask"] == row.loss_mask.astype(int).tolist()
    assert first["old_log_probs"] == row.logprobs.tolist()
    assert (first["advantage"], second["advantage"]) == (1.0, -1.0)
    assert first["model_version"] == second["model_version"] == 5
    assert first["group_id"] == second["group_id"] >= 0


def test_trl_one_sample_per_turn_where_they_differ(tmp_path: Path) -> None:
    """Dense advantages: each turn trains alone in a sample that ends with it."""
    tree = exact_session("a", 1.0)
    table = TurnTable.build(groups_of(tree), [tree])
    values = Advantages(table, [0.5, -0.25, 1.0], Stamp("made", {}))
    export("trl-grpo", [tree], groups_of(tree), tmp_path, values=values, allow=UNRECORDED)
    samples = read(tmp_path / "trl-grpo.parquet")
    row = build_rows(tree).rows[0]
    assert [s["advantage"] for s in samples] == [0.5, -0.25, 1.0]
    assert [s["turns"] for s in samples] == [[0], [1], [2]]
    trained = np.zeros(len(row), int)
    for sample in samples:
        n = len(sample["input_ids"])
        assert sample["input_ids"] == row.input_ids[:n].tolist()
        assert sample["completion_mask"][-1] == 1
        masked = np.array(sample["completion_mask"])
        assert not np.array(sample["old_log_probs"])[masked == 0].any()
        trained[:n] += masked
    assert np.array_equal(trained, row.loss_mask.astype(int))
    assert sum(s["weight"] for s in samples) == pytest.approx(1.0)


def test_verl_fields(tmp_path: Path) -> None:
    """Prompt and response meet at the first trained token; scores sit on turn ends."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0, sample=1)]
    export("verl", trees, groups_of(*trees), tmp_path, values=derived(trees))
    record = read(tmp_path / "verl.parquet")[0]
    row = build_rows(trees[0]).rows[0]
    assert record["prompts"] + record["responses"] == row.input_ids.tolist()
    lengths = {
        len(record[name])
        for name in ("responses", "response_mask", "rollout_log_probs", "rm_scores", "advantages")
    }
    assert lengths == {18}
    assert (record["response_mask"][0], record["response_mask"][-1]) == (1, 1)
    assert record["rm_scores"] == [0.0] * 17 + [1.0]
    assert (record["min_global_steps"], record["max_global_steps"]) == (5, 8)
    assert (record["uid"], record["session_id"], record["index"]) == ("g", 0, 0)
    assert json.loads(record["reward_extra_info"]) == {}


def test_verl_keeps_attempts_apart_and_scores_the_last_row(tmp_path: Path) -> None:
    """Rival attempts are sessions of their own; the row with the last turn is final."""
    fork, sub = load_golden("fork")[0], load_golden("subagent")[0]
    values = OutcomeReward().derive(TurnTable.build(groups_of(fork, sub), [fork, sub]))
    export("verl", [fork, sub], groups_of(fork, sub), tmp_path, values=values, allow=UNRECORDED)
    records = read(tmp_path / "verl.parquet")
    assert [(r["session_id"], r["index"], r["turns"]) for r in records] == [
        (0, 0, [0, 1]),
        (1 << 20, 0, [2]),
        (0, 0, [1, 2]),
        (0, 1, [0, 3]),
    ]
    assert [sum(r["rm_scores"]) for r in records] == [1.0, 0.0, 0.0, 1.0]


def test_verl_refuses_uids_that_it_would_split(tmp_path: Path) -> None:
    """A lone session with an underscore in its id is named, not exported under half its id."""
    tree = load_golden("two_versions")[0]
    tree.record.group = None
    values = OutcomeReward().derive(TurnTable.build([], [tree]))
    report = export("verl", [tree], [], tmp_path, values=values, allow=UNRECORDED)
    assert report.written == 0
    assert "underscore" in report.dropped[0].reason


def test_areal_scalar_form(tmp_path: Path) -> None:
    """Unshifted arrays, versions at the low end, the sum of rewards, turns numbered in the row."""
    tree = load_golden("subagent")[0]
    values = OutcomeReward().derive(TurnTable.build(groups_of(tree), [tree]))
    export("areal", [tree], groups_of(tree), tmp_path, values=values, allow=UNRECORDED)
    main, helper = read(tmp_path / "areal.parquet")
    assert main["turn_ids"] == [-1, -1, 0, 0, -1, 1, 1]
    assert main["loss_mask"] == [0, 0, 1, 1, 0, 1, 1]
    assert main["versions"] == [-1, -1, 3, 3, -1, 3, 3]
    assert all(main["attention_mask"])
    assert (main["rewards"], helper["rewards"]) == (1.0, 0.0)
    assert "values" not in main


def gae(record: dict[str, Any]) -> list[float]:
    """AReaL's advantages without a critic: masks shift, values don't, masked tokens are skipped."""
    mask = [*record["loss_mask"][1:], 0]
    n = len(mask)
    rewards = [0.0] * n
    rewards[n - 2] = record["rewards"]
    advantages, running, following = [0.0] * n, 0.0, 0.0
    for t in reversed(range(n - 1)):
        if mask[t]:
            running += rewards[t] + following - record["values"][t]
            following = record["values"][t]
            advantages[t + 1] = running
    return advantages


def test_areal_dense_rewards_give_rewards_to_go(tmp_path: Path) -> None:
    """Under the trainer's own formula each turn gets what it and later turns earned."""
    tree = load_golden("truncated")[0]
    table = TurnTable.build(groups_of(tree), [tree])
    values = Rewards(table, [0.25, -0.5, 1.0], Stamp("made", {}))
    export("areal", [tree], groups_of(tree), tmp_path, values=values, allow=UNRECORDED, dense=True)
    (record,) = read(tmp_path / "areal.parquet")
    assert record["rewards"] == 1.0
    assert gae(record) == [0, 0, 0.75, 0.75, 0, 0.5, 0.5, 0, 1.0, 1.0]


def test_areal_advantages_are_what_was_derived(tmp_path: Path) -> None:
    """Advantages come out of the trainer's formula unchanged."""
    tree = load_golden("two_versions")[0]
    table = TurnTable.build(groups_of(tree), [tree])
    values = Advantages(table, [0.5, -2.0], Stamp("made", {}))
    export("areal", [tree], groups_of(tree), tmp_path, values=values, allow=UNRECORDED)
    (record,) = read(tmp_path / "areal.parquet")
    (row,) = apply(build_rows(tree).rows, values)
    assert row.advantage is not None
    assert gae(record) == row.advantage.tolist()


def test_missing_or_wrong_values_are_refused(tmp_path: Path) -> None:
    """Each export names the values that it needs, and leaves no file."""
    trees = [exact_session("a", 1.0)]
    rewards, advantages = derived(trees)
    refused: list[tuple[str, Any, dict[str, Any], str]] = [
        ("trl-grpo", rewards, {}, "needs Advantages"),
        ("verl", advantages, {}, "needs Rewards"),
        ("areal", (), {}, "either Rewards or Advantages"),
        ("areal", (rewards, advantages), {}, "either Rewards or Advantages"),
        ("areal", advantages, {"dense": False}, "no scalar form"),
        ("rows", (rewards, rewards), {}, "add them up"),
        ("rows", (), {"margin": 1}, "no option 'margin'"),
        ("rowz", (), {}, "no export 'rowz'; there are areal, atif"),
    ]
    for name, values, options, message in refused:
        with pytest.raises(InvalidInput, match=message):
            export(name, trees, groups_of(*trees), tmp_path, values=values, **options)
    assert list(tmp_path.iterdir()) == []


def test_list_exports() -> None:
    """The names for the command line."""
    trainers = {"areal", "trl-grpo", "verl", "verl-sft"}
    neutral = {"in-context", "preference", "rows", "sft"}
    written = {name for name in list_formats() if get_format(name).writes}
    assert set(list_exports()) == trainers | neutral | written


def test_verl_sft_has_the_sampled_ids_of_what_passed(tmp_path: Path) -> None:
    """One row for each row of an attempt that passed; exactly its sampled ids are to be learned."""
    trees = [exact_session("a", 1.0), exact_session("b", 0.0, sample=1)]
    report = export("verl-sft", trees, groups_of(*trees), tmp_path)
    (line,) = read(tmp_path / "verl-sft.parquet")
    (row,) = build_rows(trees[0]).rows
    assert line["input_ids"] == row.input_ids.tolist()
    assert line["loss_mask"] == row.loss_mask.astype(int).tolist()
    assert [(d.session, d.reason) for d in report.dropped] == [("b", "did not pass")]
    export("verl-sft", trees, groups_of(*trees), tmp_path, include="all")
    assert len(read(tmp_path / "verl-sft.parquet")) == 2
    with pytest.raises(InvalidInput, match="takes no values"):
        export("verl-sft", trees, [], tmp_path, values=derived(trees)[0])


def test_broken_stream_leaves_the_old_file(tmp_path: Path) -> None:
    """If reading fails half-way, the file of the last export remains unchanged."""
    export("rows", [exact_session("a", 1.0)], [], tmp_path)

    def broken() -> Any:
        yield exact_session("b", 1.0)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        export("rows", broken(), [], tmp_path)
    assert [row.session for row in read_rows(tmp_path / "rows.parquet")] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_missing_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pyarrow the error names the extra."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"trajgym\[data\]"):
        export("rows", [], [], tmp_path)
