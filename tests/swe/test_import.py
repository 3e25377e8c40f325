"""Reading every published record shape into one task model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.swe import InvalidTask, SweRecord, import_tasks, load_tasks, reverse_patch

GOLD = (
    "diff --git a/pkg/m.py b/pkg/m.py\n--- a/pkg/m.py\n+++ b/pkg/m.py\n"
    "@@ -1,3 +1,3 @@\n a = 1\n-b = 3\n+b = 2\n c = 3\n"
)
BUG = (
    "diff --git a/pkg/m.py b/pkg/m.py\n--- a/pkg/m.py\n+++ b/pkg/m.py\n"
    "@@ -1,3 +1,3 @@\n a = 1\n-b = 2\n+b = 3\n c = 3\n"
)
TESTS = ["tests/test_m.py::test_b", "tests/test_m.py::test_c[x y]"]

BENCH: dict[str, Any] = {
    "repo": "owner/repo",
    "instance_id": "owner__repo-7",
    "base_commit": "c0",
    "patch": GOLD,
    "test_patch": GOLD.replace("pkg/m.py", "tests/test_m.py"),
    "problem_statement": "b is wrong",
    "hints_text": "",
    "created_at": "2024-01-01",
    "version": "1.0",
    "FAIL_TO_PASS": json.dumps(TESTS[:1]),
    "PASS_TO_PASS": json.dumps(TESTS[1:]),
    "environment_setup_commit": "c1",
}
SHAPES: dict[str, dict[str, Any]] = {
    "swe-bench": BENCH,
    "swe-bench v5": {
        **BENCH,
        "image": "registry/name:tag",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "eval_script": "cd /testbed\n: '>>>>> Start Test Output'\npytest -rA tests/test_m.py\n"
        ": '>>>>> End Test Output'\n",
    },
    "swe-bench multimodal": {**BENCH, "image_assets": '{"problem_statement": ["a.png"]}'},
    "swe-gym": {**BENCH, "FAIL_TO_PASS": TESTS[:1], "PASS_TO_PASS": TESTS[1:]},
    "swe-rebench": {
        **BENCH,
        "FAIL_TO_PASS": TESTS[:1],
        "PASS_TO_PASS": TESTS[1:],
        "docker_image": "rebench/image",
        "install_config": {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"},
        "meta": {"is_lite": True},
    },
    "swe-smith": {
        "instance_id": "owner__repo.c0ffee12.func_pm__abc",
        "repo": "swesmith/owner__repo.c0ffee12",
        "patch": BUG,
        "FAIL_TO_PASS": TESTS[:1],
        "PASS_TO_PASS": TESTS[1:],
        "image_name": "smith/image",
        "created_at": "2025",
    },
    "r2e-gym": {
        "docker_image": "r2e/repo_final:abc",
        "repo_name": "repo",
        "problem_statement": "Read this.\n[ISSUE]\nb is wrong\n[/ISSUE]",
        "expected_output_json": json.dumps({"test_b": "PASSED", "T.test_c": "FAILED"}),
        "parsed_commit_content": json.dumps(
            {
                "old_commit_hash": "c0",
                "new_commit_hash": "abc",
                "file_diffs": [
                    {
                        "header": {"file": {"path": path}},
                        "old_file_content": "a = 1\nb = 3\nc = 3",
                        "new_file_content": "a = 1\nb = 2\nc = 3",
                    }
                    for path in ("pkg/m.py", "tests/test_m.py")
                ],
            }
        ),
    },
    "multi-swe-bench": {
        "org": "owner",
        "repo": "repo",
        "number": 7,
        "title": "t",
        "body": None,
        "base": {"ref": "main", "sha": "c0"},
        "resolved_issues": [{"number": 1, "title": "b is wrong", "body": "really"}],
        "fix_patch": GOLD,
        "test_patch": "",
        "f2p_tests": {TESTS[0]: {"test": "FAIL", "fix": "PASS"}, "other row's": None},
        "n2p_tests": {"new": {"run": "NONE", "test": "NONE", "fix": "PASS"}},
        "s2p_tests": {},
        "p2p_tests": {TESTS[1]: {"run": "PASS", "test": "PASS", "fix": "PASS"}},
        "run_result": {"passed_count": 1},
    },
    "swe-bench-pro": {
        **{key: value for key, value in BENCH.items() if not key.endswith("_TO_PASS")},
        "fail_to_pass": str(TESTS[:1]),
        "pass_to_pass": str(TESTS[1:]),
        "before_repo_set_cmd": "git reset",
        "selected_test_files_to_run": "['tests/test_m.py']",
        "dockerhub_tag": "tag7",
        "requirements": "r",
        "interface": "i",
    },
}  # fmt: skip
IMAGES = {
    "swe-bench": "swebench/sweb.eval.x86_64.owner_1776_repo-7:latest",
    "swe-bench v5": "registry/name:tag",
    "swe-bench multimodal": "swebench/sweb.eval.x86_64.owner_1776_repo-7:latest",
    "swe-gym": "swebench/sweb.eval.x86_64.owner_1776_repo-7:latest",
    "swe-rebench": "rebench/image",
    "swe-smith": "smith/image",
    "r2e-gym": "r2e/repo_final:abc",
    "multi-swe-bench": "mswebench/owner_m_repo:pr-7",
    "swe-bench-pro": "jefzda/sweap-images:tag7",
}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_becomes_the_same_task(tmp_path: Path, name: str) -> None:
    """Whatever the shape: gold patch, test ids as a list, issue, image; no field is lost."""
    (task,), problems = import_tasks(lines(tmp_path / "rows.jsonl", SHAPES[name]))
    assert problems == []
    record = SweRecord.of(task)
    assert record.image == IMAGES[name]
    assert "-b = 3\n+b = 2\n" in record.patch
    assert "tests/" not in record.patch
    assert "b is wrong" in record.problem_statement or TESTS[0] in record.problem_statement
    if name == "r2e-gym":
        assert record.FAIL_TO_PASS == ["test_b"]
        assert "tests/test_m.py" in record.test_patch
    else:
        assert record.FAIL_TO_PASS[0] == TESTS[0]
        assert TESTS[1:] == record.PASS_TO_PASS
    for field, value in SHAPES[name].items():
        assert value is None or field in task.data or field.upper() in task.data, field


@pytest.mark.parametrize("name", SHAPES)
def test_reading_a_task_again_changes_nothing(tmp_path: Path, name: str) -> None:
    """A task that was imported, written and loaded is the same: no patch is reversed twice."""
    (task,), _ = import_tasks(lines(tmp_path / "rows.jsonl", SHAPES[name]))
    assert load_tasks(lines(tmp_path / "again.jsonl", task.data)) == [task]


def test_v5_rows_say_how_tests_run(tmp_path: Path) -> None:
    """The command between the markers of an evaluation script is the test command."""
    (task,), _ = import_tasks(lines(tmp_path / "rows.jsonl", SHAPES["swe-bench v5"]))
    install = SweRecord.of(task).install
    assert install.test_cmd == "pytest -rA tests/test_m.py"
    assert install.whole_command
    assert install.log_parser == "parse_log_pytest"


def test_formats_of_datasets_are_read(tmp_path: Path) -> None:
    """Parquet, arrow and saved folders give what the lines give, numpy lists included."""
    from datasets import Dataset, DatasetDict

    rows = [SHAPES["swe-gym"], {**SHAPES["swe-gym"], "instance_id": "owner__repo-8"}]
    plain, _ = import_tasks(lines(tmp_path / "rows.jsonl", *rows))
    table = Dataset.from_list(rows)
    table.to_parquet(tmp_path / "rows.parquet")
    table.save_to_disk(tmp_path / "one")
    DatasetDict({"dev": table}).save_to_disk(tmp_path / "many")
    (arrow,) = (tmp_path / "one").glob("*.arrow")
    for source in (tmp_path / "rows.parquet", arrow, tmp_path / "one"):
        assert import_tasks(source).tasks == plain
    assert import_tasks(tmp_path / "many", split="dev").tasks == plain
    assert load_tasks(tmp_path / "rows.parquet") == plain
    with pytest.raises(InvalidTask, match=r"no split 'test'; it has \['dev'\]"):
        import_tasks(tmp_path / "many")


@pytest.mark.parametrize("kind", ["array", "tuple", "literal", "json"])
def test_test_lists_in_every_form(kind: str) -> None:
    """Numpy arrays, tuples, Python literals and JSON are one list of strings."""
    import numpy as np

    forms = {
        "array": np.array(TESTS, dtype=object),
        "tuple": tuple(TESTS),
        "literal": str(TESTS),
        "json": json.dumps(TESTS),
    }
    record = SweRecord.parse({**BENCH, "PASS_TO_PASS": forms[kind]}, "here")
    assert record.PASS_TO_PASS == TESTS


def test_python_text_is_read_and_never_run(tmp_path: Path) -> None:
    """A list that is an expression is an error of that record, not code."""
    target = tmp_path / "made"
    evil = f"[open({str(target)!r}, 'w').name]"
    _, (problem,) = import_tasks(lines(tmp_path / "r.jsonl", {**BENCH, "FAIL_TO_PASS": evil}))
    assert "owner__repo-7" in problem
    assert "field FAIL_TO_PASS" in problem
    assert not target.exists()


def test_a_language_without_a_parser_is_named(tmp_path: Path) -> None:
    """Its tests could not be read; with a command and a parser of its own, the record is a task."""
    row = {**SHAPES["multi-swe-bench"], "lang": "C++"}
    install = {"test_cmd": "ctest --output-junit out.xml", "junit": ["out.xml"]}
    path = lines(tmp_path / "r.jsonl", row, {**row, "number": 8, "install_config": install})
    tasks, (problem,) = import_tasks(path)
    assert [task.id for task in tasks] == ["owner__repo-8"]
    assert "lang 'c++': there is no parser for its test output, only for go, rust" in problem


def test_bad_records_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    """One clear sentence per bad record: file, line, id, field."""
    smith = {key: value for key, value in SHAPES["swe-smith"].items() if key != "patch"}
    broken = {key: value for key, value in BENCH.items() if key != "base_commit"}
    path = lines(tmp_path / "r.jsonl", BENCH, {**broken, "instance_id": "b"}, smith, BENCH, 3)
    tasks, problems = import_tasks(path)
    assert [task.id for task in tasks] == ["owner__repo-7"]
    assert problems == [
        f"{path}:2, record 'b': field base_commit: is missing",
        f"{path}:3, record {smith['instance_id']!r}, read as swe-smith: field patch is missing",
        f"{path}:4: instance_id 'owner__repo-7' occurs twice",
        f"{path}:5: expected an object, got int",
    ]


def test_image_names_may_be_given(tmp_path: Path) -> None:
    """A template names the images of a data set whose rows do not."""
    path = lines(tmp_path / "r.jsonl", BENCH)
    (task,), _ = import_tasks(path, image="mirror/{instance_id}:{version}")
    assert task.data["image"] == "mirror/owner__repo-7:1.0"
    _, (problem,) = import_tasks(path, image="mirror/{nothing}")
    assert "nothing" in problem


def test_missing_file_is_not_taken_for_a_hub_name() -> None:
    """A path that does not exist is an error immediately."""
    with pytest.raises(InvalidTask, match="no such data set file"):
        import_tasks("data/rows.parquet")


OLD = {
    "keep.txt": "a\nb\nc\nd\ne\nf\ng\nh\n",
    "end.txt": "1\n2",
    "gone.txt": "x\n",
    "run.sh": "x\n",
}
NEW = {
    "keep.txt": "a\nB\nBB\nd\ne\nf\nh\n",
    "end.txt": "1\n3\n",
    "new.txt": "--- y\n+++ z",
    "run.sh": "x\n",
}


def test_reversed_patch_is_what_git_reverses(tmp_path: Path) -> None:
    """A patch and then its reverse give the tree back: new, deleted, modes, no line end."""

    def git(*arguments: str, data: str = "") -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            cwd=tmp_path, input=data, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    git("init", "-q")
    for name, text in OLD.items():
        (tmp_path / name).write_text(text)
    git("add", "-A")
    git("commit", "-qm", "old")
    before = git("write-tree")
    (tmp_path / "gone.txt").unlink()
    for name, text in NEW.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "run.sh").chmod(0o755)
    git("add", "-A")
    patch = git("diff", "--cached", "--no-renames")
    assert "No newline" in patch
    assert reverse_patch(reverse_patch(patch)) == patch
    git("apply", "--index", data=reverse_patch(patch))
    assert git("write-tree") == before


def test_binary_patch_can_not_be_reversed() -> None:
    """A binary change does not hold the old bytes: an error, not a wrong patch."""
    with pytest.raises(InvalidTask, match="binary"):
        reverse_patch("diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nA\n")
