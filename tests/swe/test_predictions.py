"""Grading patches from prediction files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from trajgym.cli import app
from trajgym.envs.swe import grade_predictions, load_tasks, read_predictions
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from trajgym.envs.sandbox import SandboxProvider

EXIT = (
    "diff --git a/spans/_new.py b/spans/_new.py\nnew file mode 100644\n--- /dev/null\n"
    "+++ b/spans/_new.py\n@@ -0,0 +1 @@\n+x = 1\n"
)


def written(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.mark.parametrize("form", ["list", "object", "lines", "patches"])
def test_every_form_of_predictions_is_read(tmp_path: Path, form: str) -> None:
    """A list, an object by id, lines: the same predictions; no patch is an empty one."""
    entries = [
        {"instance_id": "a", "model_patch": "x", "model_name_or_path": "m"},
        {"instance_id": "b", "model_patch": None, "model_name_or_path": "m"},
    ]
    file = tmp_path / ("p.jsonl" if form == "lines" else "p.json")
    if form == "lines":
        written(file, *entries)
    elif form == "list":
        file.write_text(json.dumps(entries))
    elif form == "object":
        file.write_text(json.dumps({entry["instance_id"]: entry for entry in entries}))
    else:
        file.write_text(json.dumps({"a": "x", "b": ""}))
    first, second = read_predictions(file)
    assert (first.instance_id, first.model_patch) == ("a", "x")
    assert (second.instance_id, second.model_patch) == ("b", "")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"model_patch": ""}, r"p\.jsonl:2: field instance_id"),
        ({"instance_id": "b"}, "'b': field model_patch is missing"),
        ({"instance_id": "a", "model_patch": ""}, "'a' occurs twice"),
        ({"instance_id": "b", "model_patch": 3}, "model_patch is not text"),
        ([], "expected an object, got list"),
    ],
)
def test_bad_prediction_is_named(tmp_path: Path, entry: Any, said: str) -> None:
    """The error names the place and the fault."""
    file = written(tmp_path / "p.jsonl", {"instance_id": "a", "model_patch": ""}, entry)
    with pytest.raises(InvalidInput, match=said):
        read_predictions(file)


async def test_results_come_once_and_are_resumed(
    sandboxes: SandboxProvider, tmp_path: Path
) -> None:
    """One line per instance; a second run grades only what failed, changed or was cut off."""
    tasks = load_tasks("builtin")
    gold = {task.id: task.data["patch"] for task in tasks}
    first, second = sorted(gold)
    file = written(
        tmp_path / "p.jsonl",
        {"instance_id": first, "model_patch": gold[first], "model_name_or_path": "m"},
        {"instance_id": second, "model_patch": EXIT},
        {"instance_id": "unknown", "model_patch": ""},
    )
    out = tmp_path / "results.jsonl"
    found = await grade_predictions(tasks, read_predictions(file), sandboxes, out)
    assert [(r.status, r.f2p) for r in found] == [
        ("resolved", 1.0),
        ("unresolved", 0.0),
        ("failed", None),
    ]
    assert "no task" in found[2].problem
    assert len(out.read_text().splitlines()) == 3
    with out.open("a") as half:
        half.write('{"instance_id": "cut o')
    again: list[str] = []
    changed = [p._replace(model_patch=gold[second]) if p.instance_id == second else p
               for p in read_predictions(file)]  # fmt: skip
    later = await grade_predictions(
        tasks, changed, sandboxes, out, on_result=lambda r: again.append(r.instance_id)
    )
    assert sorted(again) == sorted([second, "unknown"])
    assert [r.status for r in later] == ["resolved", "resolved", "failed"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(line["instance_id"] for line in lines) == sorted([first, second, "unknown"])


async def test_a_result_that_can_not_be_kept_says_so(
    sandboxes: SandboxProvider, tmp_path: Path
) -> None:
    """The error is raised as it is, not in a group of those that are graded concurrently."""
    file = written(tmp_path / "p.jsonl", {"instance_id": "unknown", "model_patch": ""})

    def on_result(_: object) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await grade_predictions(
            [], read_predictions(file), sandboxes, tmp_path / "out.jsonl", on_result=on_result
        )


async def test_foreign_file_is_not_overwritten(sandboxes: SandboxProvider, tmp_path: Path) -> None:
    """A file that holds something else is refused and left as it is."""
    out = tmp_path / "notes.txt"
    out.write_text("my notes\nand more\n")
    with pytest.raises(InvalidInput, match=r"notes\.txt:1 is not a result"):
        await grade_predictions([], [], sandboxes, out)
    assert out.read_text() == "my notes\nand more\n"


def test_command_prints_a_summary(tmp_path: Path) -> None:
    """`trajgym swe grade` writes the lines and prints how many were resolved."""
    (task,) = load_tasks(["trajgym__spans-1.0"])
    predictions = written(
        tmp_path / "p.jsonl", {"instance_id": task.id, "model_patch": task.data["patch"]}
    )
    out = tmp_path / "out.jsonl"
    arguments = ["--tasks", "builtin", "--predictions", str(predictions), "--out", str(out)]
    done = CliRunner().invoke(app, ["swe", "grade", *arguments, "--sandbox", "embedded"])
    assert done.exit_code == 0, done.output
    assert "1 of 1 resolved" in done.output
    assert json.loads(out.read_text())["resolved"] is True
