"""Reading task records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs.swe import InvalidTask, SweRecord, builtin_names, load_tasks, recipe_names
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from pathlib import Path


def record(**changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "owner__repo-1",
        "repo": "owner/repo",
        "base_commit": "0" * 40,
        "problem_statement": "It is broken.",
        "patch": "",
        "test_patch": "",
        "FAIL_TO_PASS": ["tests/test_a.py::test_one"],
        "PASS_TO_PASS": [],
        **changes,
    }


@pytest.mark.parametrize("name", ["instance_id", "problem_statement", "FAIL_TO_PASS", "patch"])
def test_missing_field_is_named_with_its_record(tmp_path: Path, name: str) -> None:
    """A missing field is an error that names the record and the field."""
    broken = record()
    del broken[name]
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([record(instance_id="fine"), broken]))
    with pytest.raises(InvalidTask) as error:
        load_tasks(file)
    assert f"field {name}: is missing" in str(error.value)
    assert "tasks.json[1]" in str(error.value)
    assert name == "instance_id" or "owner__repo-1" in str(error.value)


def test_test_lists_may_be_json_strings(tmp_path: Path) -> None:
    """Lists that are published as JSON strings are read."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(record(FAIL_TO_PASS='["a.py::t[x y]"]', PASS_TO_PASS="[]")) + "\n")
    (task,) = load_tasks(file)
    assert task.data["FAIL_TO_PASS"] == ["a.py::t[x y]"]


def test_test_list_that_is_no_list_is_refused() -> None:
    """A test list that is neither a list nor JSON is an error that names the field."""
    with pytest.raises(InvalidTask, match=r"field FAIL_TO_PASS: .*not a JSON list"):
        SweRecord.parse(record(FAIL_TO_PASS="test_one, test_two"), "here")


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    """Unknown fields are kept in a task and written back."""
    file = tmp_path / "one.json"
    file.write_text(json.dumps(record(difficulty="15 min", image_assets={"a": [1]})))
    (task,) = load_tasks(tmp_path)
    assert task.data["difficulty"] == "15 min"
    kept = SweRecord.of(Task.model_validate_json(task.model_dump_json())).model_dump()
    assert kept["image_assets"] == {"a": [1]}


def test_prompt_data_do_not_reach_the_task_prompt() -> None:
    """The task itself carries no prompt in which a patch could stand."""
    assert SweRecord.parse(record(patch="gold"), "here").to_task().prompt is None


def test_jsonl_error_names_the_line(tmp_path: Path) -> None:
    """A bad record in a line file is found by its line number."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(f"{json.dumps(record())}\n\n[]\n")
    with pytest.raises(InvalidTask, match=r"tasks\.jsonl:3: expected an object, got list"):
        load_tasks(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not JSON"), (json.dumps([record(), record()]), "occurs twice")],
)
def test_bad_file_is_refused(tmp_path: Path, content: str, said: str) -> None:
    """Files that are not JSON or hold an id twice are refused."""
    file = tmp_path / "tasks.json"
    file.write_text(content)
    with pytest.raises(InvalidTask, match=said):
        load_tasks(file)


def test_unknown_name_lists_what_there_is() -> None:
    """A name that is neither a file nor a task is an error that lists the existing names."""
    with pytest.raises(InvalidTask, match=r"trajgym__spans-1\.0"):
        load_tasks("no-such-task")


def test_missing_file_is_an_error() -> None:
    """A path that does not exist is an error, not an empty list."""
    with pytest.raises(InvalidTask, match="no such task file"):
        load_tasks("missing/tasks.json")


def test_shipped_names() -> None:
    """Two whole tasks and eleven recipes are shipped, besides the corpus."""
    assert builtin_names() == ["trajgym__fieldtext-1.0", "trajgym__spans-1.0"]
    assert len(recipe_names()) == 11
