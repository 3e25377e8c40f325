"""Operations on runs: what they keep, that groups stay whole, and the lineage that they record."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.datasets.runs import contents, grouped_run, tree, write_run
from tests.strategies import exact_trees
from tests.worlds import PNG
from trajgym.cli import app
from trajgym.envs.swe._record import SweRecord
from trajgym.trajectory import InvalidInput, Run, SessionTree, Store, StoreLocked, Task
from trajgym.trajectory.datasets import (
    dataset_id,
    dedup_run,
    filter_run,
    lineage,
    merge_runs,
    name_dataset,
    sample_run,
    split_run,
    stratify_run,
    task_licence,
)


def groups_of(path: Path) -> list[str]:
    with Run(path) as run:
        return [group.id for group in run.groups()]


def sessions_of(path: Path) -> list[str]:
    with Run(path) as run:
        return [one.record.id for one in run.summaries()]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(exact_trees(max_turns=6, group=None), min_size=1, max_size=5), st.integers(0, 9))
def test_split_and_merge_give_the_run_back(trees: list[SessionTree], seed: int) -> None:
    """Every session tree is the same in its part, and the parts together are the run."""
    for n, one in enumerate(trees):
        one.record.id, one.record.task = f"s{n}", f"t{n}"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tasks = [Task(id=f"t{n}", data={"n": n}) for n in range(len(trees))]
        write_run(home / "run", trees, tasks=tasks, more=True)
        whole = contents(home / "run")
        split_run(home / "run", home / "parts", {"a": 0.5, "b": 0.5}, seed=seed)
        merge_runs([home / "parts" / "a", home / "parts" / "b"], home / "again")
        assert contents(home / "again") == whole
        merge_runs([home / "run", home / "again", home / "parts" / "b"], home / "once")
        assert contents(home / "once") == whole  # what is the same is taken once
        with Run(home / "again") as run:
            assert run.check() == []


def test_a_split_is_by_task_and_exact(tmp_path: Path) -> None:
    """Shares are met in tasks, no task is in two parts, and clusters stay together."""
    grouped_run(tmp_path / "run", tasks=10, samples=2)
    parts = split_run(tmp_path / "run", tmp_path / "parts", {"train": 0.7, "test": 0.3}, seed=1)
    assert (parts["train"].tasks, parts["test"].tasks) == (7, 3)
    assert (parts["train"].sessions, parts["test"].sessions) == (14, 6)
    train, test = (contents(tmp_path / "parts" / name) for name in ("train", "test"))
    assert set(train["tasks"]).isdisjoint(test["tasks"])
    assert {**train["sessions"], **test["sessions"]} == contents(tmp_path / "run")["sessions"]
    again = split_run(tmp_path / "run", tmp_path / "twice", {"train": 0.7, "test": 0.3}, seed=1)
    assert contents(again["test"].path) == test
    levels = split_run(tmp_path / "run", tmp_path / "levels", {"x": 0.6, "y": 0.4}, by="data.level")
    found = [
        {task.data["level"] for task in contents(one.path)["tasks"].values()}
        for one in levels.values()
    ]
    assert found[0].isdisjoint(found[1])
    assert (levels["x"].tasks, levels["y"].tasks) == (6, 4)


@pytest.mark.parametrize(
    ("where", "match", "kept"),
    [
        ("passed", "any", ["g1", "g2", "g3"]),
        ("passed", "all", []),
        ("passed or status == 'failed:env'", "all", ["g2", "g3"]),
        ("turns > 2", "any", ["g2", "g3"]),
        ("data.level == 0 and labels.by == 'me'", "any", ["g0", "g1"]),
        ("0 < solve_rate < 1", "any", ["g1"]),
        ("group_size == 3 and mean_score == 1 and prompt == 'Do 3.'", "any", ["g3"]),
        ("attempts == 1 and env == 'e' and sample == 2 and score == None", "all", []),
    ],
)
def test_a_filter_keeps_whole_groups(
    tmp_path: Path, where: str, match: str, kept: list[str]
) -> None:
    """A group is kept with all its sessions, failed ones included, or not at all."""
    grouped_run(tmp_path / "run")
    made = filter_run(tmp_path / "run", tmp_path / "out", where, match=match)  # type: ignore[arg-type]
    before, after = contents(tmp_path / "run"), contents(tmp_path / "out")
    assert list(after["groups"]) == kept
    assert made.sessions == 3 * len(kept)
    assert made.left_out == 12 - made.sessions
    wanted = {member.session for name in kept for member in before["groups"][name].members}
    assert after["sessions"] == {key: before["sessions"][key] for key in sorted(wanted)}
    assert set(after["tasks"]) == {f"t{name[1:]}" for name in kept}


def test_blobs_travel_with_the_sessions_that_show_them(tmp_path: Path) -> None:
    """Images are there where they are shown, and only there."""
    grouped_run(tmp_path / "run")
    filter_run(tmp_path / "run", tmp_path / "with", "task == 't0'")
    filter_run(tmp_path / "run", tmp_path / "without", "task != 't0'")
    name = next(
        part["image_url"]["url"].removeprefix("blob:")
        for part in contents(tmp_path / "with")["sessions"]["t0-0"][0]["turns"][0]["observation"][
            0
        ]["content"]
    )
    with Run(tmp_path / "with") as run:
        assert run.blob(name) == (PNG, "image/png")
    with Run(tmp_path / "without") as run, pytest.raises(InvalidInput, match="no blob"):
        run.blob(name)


def test_merging_runs_of_the_same_tasks(tmp_path: Path) -> None:
    """Groups and sessions with ids that are taken are renamed together; their content is equal."""
    one, two = grouped_run(tmp_path / "one"), grouped_run(tmp_path / "two", shift=1)
    made = merge_runs([one, two, one], tmp_path / "both")
    assert (made.sessions, made.groups, made.tasks) == (24, 8, 4)
    assert (made.left_out, made.renamed) == (12, 12)
    both, first, second = (contents(path) for path in (made.path, one, two))
    assert {k: v for k, v in both["sessions"].items() if k in first["sessions"]} == first[
        "sessions"
    ]
    for name, group in second["groups"].items():
        renamed = both["groups"][f"{name}-2"]
        assert [m.session for m in renamed.members] == [f"{m.session}-2" for m in group.members]
        assert [m.left for m in renamed.members] == [m.left for m in group.members]
        for before, after in zip(group.members, renamed.members, strict=True):
            session, *rest = both["sessions"][after.session]
            assert session["session"]["group"] == f"{name}-2"
            assert session["turns"] == second["sessions"][before.session][0]["turns"]
            assert rest == second["sessions"][before.session][1:]


def test_merging_other_tasks_of_the_same_id_is_refused(tmp_path: Path) -> None:
    """Nothing is made, and nothing is left behind, if two tasks of one id differ."""
    write_run(tmp_path / "a", [tree("a")], tasks=[Task(id="t", prompt="this")])
    write_run(tmp_path / "b", [tree("b")], tasks=[Task(id="t", prompt="that")])
    with pytest.raises(InvalidInput, match="task 't' has other contents"):
        merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert list((tmp_path / "both").iterdir()) == []
    merge_runs([tmp_path / "a"], tmp_path / "both")
    with pytest.raises(InvalidInput, match="there is a run already"):
        merge_runs([tmp_path / "a"], tmp_path / "both")


def test_dedup(tmp_path: Path) -> None:
    """Equal tasks and messages are duplicates, whatever their ids; each is kept once."""
    tasks = [Task(id=name, prompt="same") for name in ("a", "b")] + [Task(id="c", prompt="other")]
    trees = [
        tree("1", task="a", says=["x", "y"]),
        tree("2", task="b", says=["x", "y"]),
        tree("3", task="a", says=["x"]),
        tree("4", task="c", says=["x", "y"]),
    ]
    write_run(tmp_path / "run", trees, tasks=tasks)
    assert dedup_run(tmp_path / "run", tmp_path / "content").left_out == 1
    assert sessions_of(tmp_path / "content") == ["1", "3", "4"]
    dedup_run(tmp_path / "run", tmp_path / "task", by="task")
    assert sessions_of(tmp_path / "task") == ["1", "4"]
    two = merge_runs(
        [grouped_run(tmp_path / "one"), grouped_run(tmp_path / "other", samples=2)],
        tmp_path / "two",
    )
    assert dedup_run(two.path, tmp_path / "groups").groups == 8  # a smaller group is another
    assert groups_of(dedup_run(two.path, tmp_path / "tasks", by="task").path) == [
        "g0",
        "g1",
        "g2",
        "g3",
    ]


def test_sample_and_stratify(tmp_path: Path) -> None:
    """As many groups as asked for, the same each time; equally many of each value."""
    run = grouped_run(tmp_path / "run", tasks=10, samples=2)
    assert sample_run(run, tmp_path / "a", n=3, seed=4).groups == 3
    assert sample_run(run, tmp_path / "b", share=0.3, seed=4).sessions == 6
    assert groups_of(tmp_path / "a") == groups_of(tmp_path / "b")
    chosen = {
        tuple(groups_of(sample_run(run, tmp_path / f"s{n}", n=3, seed=n).path)) for n in range(5)
    }
    assert len(chosen) > 1
    made = stratify_run(run, tmp_path / "c", "solve_rate == 1")
    assert made.groups == 2  # one task was never solved
    assert "g0" in groups_of(made.path)
    made = stratify_run(run, tmp_path / "d", "data.level", per=1)
    assert sorted(t.data["level"] for t in contents(made.path)["tasks"].values()) == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidInput, match="groups stay whole"):
        stratify_run(run, tmp_path / "e", "id")


def test_lineage_and_identity(tmp_path: Path) -> None:
    """A run names what it was made of, all the way back; a name has Minari's form."""
    run = grouped_run(tmp_path / "run")
    named = name_dataset(run, "team/counting-v0", versions={"e": "1.2"})
    assert named.environments == [{"id": "e", "config": {}, "sessions": 12}]
    filter_run(run, tmp_path / "some", "turns > 1")
    sample_run(tmp_path / "some", tmp_path / "few", n=1, seed=3)
    with Run(run) as opened:
        assert dataset_id(opened) == named
        assert lineage(opened) is None
    with Run(tmp_path / "few") as opened:
        assert dataset_id(opened) is None  # another content is another data set
        made = lineage(opened)
        assert opened.meta()["env"] == '{"id": "e"}'
    assert made is not None
    assert (made.operation, made.arguments) == ("sample", {"n": 1, "share": None, "seed": 3})
    (source,) = made.sources
    assert source["sessions"] == 9
    assert source["lineage"]["operation"] == "filter"
    assert source["lineage"]["arguments"] == {"where": "turns > 1", "match": "any"}
    assert source["lineage"]["sources"][0]["dataset"] == "team/counting-v0"
    for name in ("counting", "team/counting", "../x-v0", "a b-v0", "x-v", "/x-v1"):
        with pytest.raises(InvalidInput, match="dataset name"):
            name_dataset(run, name)


def test_a_run_that_is_being_written_is_refused(tmp_path: Path) -> None:
    """An operation would see half of it."""
    grouped_run(tmp_path / "run")
    with Store(tmp_path / "run"), pytest.raises(StoreLocked, match="writing this run"):
        sample_run(tmp_path / "run", tmp_path / "out", n=1)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"a": 0.5, "b": 0.4}, "add up to 0.9"),
        ({"a/b": 1.0}, "not a name of a part"),
        ({"a": 1.5, "b": -0.5}, "share"),
        ({}, "add up to 0"),
    ],
)
def test_parts_that_make_no_sense(tmp_path: Path, parts: dict[str, float], reason: str) -> None:
    """Shares have to add up, and parts are named like directories."""
    grouped_run(tmp_path / "run")
    with pytest.raises(InvalidInput, match=reason):
        split_run(tmp_path / "run", tmp_path / "out", parts)


def test_the_commands(tmp_path: Path) -> None:
    """Every operation has a command, which prints what it made."""
    run = grouped_run(tmp_path / "run")

    def said(*arguments: object, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["dataset", *(str(one) for one in arguments)])
        if isinstance(result.exception, InvalidInput):
            return str(result.exception)
        assert result.exit_code == status, result.output
        return result.output

    parts = ("--part", "train=0.75", "--part", "test=0.25")
    text = said("split", run, "--out", tmp_path / "parts", *parts)
    assert "train: 9 sessions, 3 groups, 3 tasks; 3 sessions left out" in text
    text = said("merge", tmp_path / "parts/train", tmp_path / "parts/test", "--out", tmp_path / "m")
    assert "m: 12 sessions, 4 groups, 4 tasks\n" in text
    text = said("filter", run, "--out", tmp_path / "f", "--where", "passed", "--match", "any")
    assert "9 sessions" in text
    assert "did you mean 'passed'" in said(
        "filter", run, "--out", tmp_path / "x", "--where", "pased"
    )
    assert "12 sessions" in said("dedup", run, "--out", tmp_path / "d")
    assert "3 sessions" in said("sample", run, "--out", tmp_path / "s", "-n", 1)
    text = said("stratify", run, "--out", tmp_path / "st", "--by", "data.level", "--json")
    assert json.loads(text)[0]["groups"] == 4
    assert "trajgym " in said("name", run, "team/things-v1")
    info = json.loads(said("info", run))
    assert info["dataset"]["id"] == "team/things-v1"
    assert info["lineage"] is None
    assert "solve_rate" in said("fields")
    said("split", run, "--out", tmp_path / "z", "--part", "all", status=2)


def test_licences_stay_with_tasks_and_select(tmp_path: Path) -> None:
    """Of data, and of the provenance of a SWE task; tasks without one can be named."""
    tasks = [
        Task(id="a", data={"license": "MIT"}),
        SweRecord.parse(
            {
                "instance_id": "b",
                "repo": "a/b",
                "base_commit": "0" * 40,
                "patch": "",
                "test_patch": "",
                "FAIL_TO_PASS": ["test"],
                "PASS_TO_PASS": [],
                "problem_statement": "It fails.",
                "provenance": {"licence": "BSD  3-Clause", "permissive": True},
            },
            "record",
        ).to_task(),
        Task(id="c", data={"license": {"other": 1}}),
    ]
    run = write_run(tmp_path / "run", [tree(f"s-{t.id}", task=t.id) for t in tasks], (), tasks)
    assert [task_licence(task) for task in tasks] == ["MIT", "BSD 3-Clause", None]
    for where, kept in (
        ("licence == 'BSD 3-Clause'", ["s-b"]),
        ("licence in ['MIT', None]", ["s-a", "s-c"]),
    ):
        out = tmp_path / kept[0]
        filter_run(run, out, where)
        with Run(out) as opened:
            assert [one.record.id for one in opened.sessions()] == kept
            assert all(opened.task(one.record.task) in tasks for one in opened.sessions())
