"""Evaluation tasks in training data: by id, as a whole, and by their words."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.datasets.runs import tree, write_run
from trajgym.cli import app
from trajgym.trajectory import Group, InvalidInput, Member, Run, SessionTree, Task
from trajgym.trajectory.datasets import decontaminate_run, find_contamination, lineage

CHANCE = random.Random(3)
WORDS = [f"{a}{b}" for a in ("al", "be", "ca", "du", "el", "fo", "gi") for b in "abcdefghijklm"]


def prose(n: int) -> str:
    return " ".join(CHANCE.choice(WORDS) for _ in range(n))


EVAL = [Task(id=f"e{n}", prompt=prose(40), data={"patch": prose(60)}) for n in range(5)]


def file_of(path: Path, tasks: list[Task]) -> Path:
    path.write_text("\n".join(task.model_dump_json() for task in tasks) + "\n\n")
    return path


def run_of(path: Path, trees: list[SessionTree], tasks: list[Task]) -> Path:
    return write_run(path, trees, (), tasks)


def kinds(train: Path, evaluation: Path, **settings: float) -> set[tuple[str, str, str | None]]:
    found = find_contamination(train, evaluation, **settings)  # type: ignore[arg-type]
    return {(one.kind, one.task, one.session) for one in found.overlaps}


def test_ids_tasks_and_words_are_found(tmp_path: Path) -> None:
    """A renamed task in another spelling, words of a patch in an answer, arguments of calls."""
    assert EVAL[1].prompt is not None
    tasks = [
        Task(id="e0", prompt=prose(40)),
        EVAL[1].model_copy(update={"id": "t1", "prompt": f"  {EVAL[1].prompt.upper()}!\n"}),
        Task(id="t2", prompt=prose(40)),
    ]
    said = tree("s2", task="t2", says=[f"I see: {EVAL[2].data['patch']}, so", "done"])
    called = tree("s3", task="t2")
    arguments = json.dumps({"command": f"cat\n{EVAL[3].prompt}"})
    called.turns[0].message["tool_calls"] = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    ]
    clean = tree("s4", task="t2", says=[prose(200)])
    train = run_of(tmp_path / "train", [said, called, clean, tree("s5", task="e0")], tasks)
    evaluation = file_of(tmp_path / "eval.jsonl", EVAL)
    assert kinds(train, evaluation) == {
        ("id", "e0", None),
        ("task", "e1", None),
        ("text", "e1", None),
        ("trajectory", "e2", "s2"),
        ("trajectory", "e3", "s3"),
    }
    report = find_contamination(train, evaluation)
    assert report.found == {"e0", "e1", "e2", "e3"}
    assert report.found_in == {"e0", "t1"}
    assert report.found_sessions == {"s2", "s3"}
    (patch,) = [one for one in report.overlaps if one.task == "e2"]
    assert (patch.where, patch.share) == ("data.patch", 1.0)
    assert patch.excerpt == " ".join(EVAL[2].data["patch"].split()[:30])


def test_a_share_of_the_words_decides(tmp_path: Path) -> None:
    """Half of a prompt is found at 0.3, not at 0.5; a text spread over messages adds up."""
    words = str(EVAL[0].prompt).split()
    half = tree("s", task="t", says=[" ".join(words[:24])])
    train = run_of(tmp_path / "train", [half], [])
    evaluation = file_of(tmp_path / "eval.jsonl", EVAL)
    assert kinds(train, evaluation) == set()
    assert kinds(train, evaluation, overlap=0.3) == {("trajectory", "e0", "s")}
    spread = tree("s", task="t", says=[" ".join(words[:24]), " ".join(words[12:])])
    both = run_of(tmp_path / "both", [spread], [])
    assert kinds(both, evaluation) == {("trajectory", "e0", "s")}


def test_templates_are_ignored_and_short_tasks_are_compared_whole(tmp_path: Path) -> None:
    """Words that many evaluation tasks begin with are no contamination."""
    opening = prose(30)
    tasks = [Task(id=f"e{n}", prompt=f"{opening} {n}") for n in range(10)]
    tasks.append(Task(id="short", prompt="Count to three."))
    train = run_of(
        tmp_path / "train",
        [tree("s", task="t", says=[opening])],
        [Task(id="t", prompt="count  TO three"), Task(id="u", prompt="Count to three hundred.")],
    )
    report = find_contamination(train, file_of(tmp_path / "eval.jsonl", tasks))
    assert [(one.kind, one.task, one.found_in) for one in report.overlaps] == [
        ("task", "short", "t")
    ]
    assert report.templates > 0
    assert report.unindexed == 11


def test_the_new_run_has_none_of_it(tmp_path: Path) -> None:
    """Whole groups are left out; the lineage says so; the command's status follows."""
    bad = [
        tree("a-0", task="t1", group="a", says=[str(EVAL[0].prompt)]),
        tree("a-1", task="t1", group="a"),
    ]
    good = [tree("b-0", task="t2", group="b"), tree("c", task="e1")]
    groups = [
        Group(
            id="a", task="t1", planned=2, members=[Member("a-0", 0), Member("a-1", 1)], sealed=True
        ),
        Group(id="b", task="t2", planned=1, members=[Member("b-0", 0)], sealed=True),
    ]
    train = write_run(tmp_path / "train", [*bad, *good], groups, [Task(id="t1"), Task(id="t2")])
    evaluation = run_of(tmp_path / "eval", [], EVAL)
    report = find_contamination(train, evaluation)
    made = decontaminate_run(train, tmp_path / "out", report)
    assert (made.sessions, made.left_out) == (1, 3)
    with Run(tmp_path / "out") as run:
        assert [one.record.id for one in run.sessions()] == ["b-0"]
        source = lineage(run)
        assert source is not None
        assert (source.operation, source.arguments["found"]) == ("decontaminate", 2)
    command = ["dataset", "contamination", str(train), str(evaluation)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 1
    assert "2 of 5 evaluation tasks found" in first.output
    second = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "again"), "--json"])
    assert second.exit_code == 0
    assert json.loads(second.output)["out"]["sessions"] == 1
    clean = CliRunner().invoke(
        app, ["dataset", "contamination", str(tmp_path / "out"), str(evaluation)]
    )
    assert clean.exit_code == 0


def test_bad_input_is_refused(tmp_path: Path) -> None:
    """Settings out of range, and files that are not of tasks, with the line."""
    train = run_of(tmp_path / "train", [], [])
    with pytest.raises(InvalidInput, match="above 0 up to 1"):
        find_contamination(train, train, overlap=0)
    bad = tmp_path / "eval.jsonl"
    bad.write_text('{"id": "a"}\n{"name": 1}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        find_contamination(train, bad)
