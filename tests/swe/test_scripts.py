"""Runners other than pytest: JUnit XML files, a data set's own scripts, R2E-Gym's whole result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs.swe import SweRecord, grade, import_tasks, parse_log
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs.sandbox import SandboxProvider

RUN = """
files=$(echo "$1" | tr ',' ' ')
python3 -m pytest -q -rA -p no:cacheprovider $files
echo noise >&2
"""
PARSER = """
import json, sys
tests = []
for line in open(sys.argv[1]):
    word, _, name = line.strip().partition(" ")
    if word in ("PASSED", "FAILED"):
        tests.append({"name": name.split(" - ")[0], "status": word})
assert open(sys.argv[2]).read() == "noise\\n"
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""


def changed(task: Task, rename: Callable[[str], str], **fields: Any) -> Task:
    """Return the task with other test ids and another way to run them."""
    record = SweRecord.of(task)
    lists = {
        name: sorted({rename(test) for test in getattr(record, name)})
        for name in ("FAIL_TO_PASS", "PASS_TO_PASS")
    }
    return SweRecord.parse({**task.data, **lists, **fields}, "changed").to_task()


def files(task: Task) -> list[str]:
    tests = task.data["FAIL_TO_PASS"] + task.data["PASS_TO_PASS"]
    return sorted({test.split("::")[0] for test in tests})


async def both(task: Task, sandboxes: SandboxProvider) -> tuple[float, dict[str, Any]]:
    """Grade gold and nothing; return gold's score and details, nothing's must be 0."""
    empty = await grade(task, b"", sandboxes)
    assert (empty.score, empty.details["problem"]) == (0.0, "")
    assert empty.details["p2p"] == 1.0
    gold = await grade(task, task.data["patch"].encode(), sandboxes)
    return gold.score, gold.details


async def test_a_data_sets_own_scripts_decide(sandboxes: SandboxProvider, spans: Task) -> None:
    """The script gets its arguments; the parser reads both logs and runs in another sandbox."""
    task = changed(
        spans,
        lambda test: test,
        install_config={
            "run_script": RUN,
            "parser_script": PARSER,
            "script_arguments": [",".join(files(spans))],
        },
    )
    score, details = await both(task, sandboxes)
    assert score == 1.0, details
    assert "not run by pytest" in details["twins"]["skipped"]


async def test_a_parser_that_fails_gives_no_score(sandboxes: SandboxProvider, spans: Task) -> None:
    """Without results, nothing is solved, and the problem has the parser's message."""
    install = {"run_script": "true", "parser_script": "raise SystemExit('no tests here')"}
    task = changed(spans, lambda test: test, install_config=install)
    outcome = await grade(task, b"", sandboxes)
    assert outcome.score == 0.0
    assert "no tests here" in outcome.details["problem"]


async def test_junit_files_of_any_runner_are_read(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """Ids are class and name; a report that the change itself brought is removed before."""
    command = f"mkdir -p out; python3 -m pytest -q --junitxml=out/a.xml {' '.join(files(spans))}"
    task = changed(
        spans,
        lambda test: test.replace(".py::", "::").replace("/", "."),
        install_config={"test_cmd": command, "junit": ["out/*.xml", "target/**/*.xml"]},
    )
    score, details = await both(task, sandboxes)
    assert score == 1.0, details
    cases = "".join(
        f'<testcase classname="{test.split("::")[0]}" name="x"/>'
        for test in task.data["FAIL_TO_PASS"]
    )
    patch = edit(**{"out__forged.xml": f"<testsuite>{cases}</testsuite>"})
    assert (await grade(task, patch, sandboxes)).score == 0.0


async def test_r2e_records_ask_for_the_whole_result(
    sandboxes: SandboxProvider, spans: Task
) -> None:
    """A test more, a test less, or another status than expected is not solved."""
    command = f"python3 -m pytest -q -rA {' '.join(files(spans))}"

    def named(test: str) -> str:
        return ".".join(test.split("::")[1:])

    tests = [named(t) for t in spans.data["FAIL_TO_PASS"] + spans.data["PASS_TO_PASS"]]
    expected = dict.fromkeys(tests, "PASSED")
    scores = []
    for results in (
        expected,
        {**expected, "test_more": "FAILED"},
        dict(list(expected.items())[1:]),
    ):
        row = {
            **{key: spans.data[key] for key in ("patch", "test_patch", "source")},
            "instance_id": "r2e-1", "repo": "spans", "base_commit": "", "shape": "r2e-gym",
            "problem_statement": "p", "expected_results": results, "PASS_TO_PASS": [],
            "FAIL_TO_PASS": [name for name, status in results.items() if status == "PASSED"],
            "install_config": {"test_cmd": command, "whole_command": True, "log_parser": "r2e"},
        }  # fmt: skip
        task = SweRecord.parse(row, "r2e").to_task()
        outcome = await grade(task, task.data["patch"].encode(), sandboxes)
        assert outcome.details["problem"] == ""
        scores.append(outcome.score)
    assert scores == [1.0, 0.0, 0.0]


def test_r2e_names_tests_by_what_follows_the_file() -> None:
    """Colours and causes are cut, as its own parser does."""
    log = (
        "== short test summary info ==\n"
        "\x1b[32mPASSED\x1b[0m r2e_tests/t.py::\x1b[1mT::test_a\x1b[0m\n"
        "FAILED r2e_tests/t.py::test_b[x y] - AssertionError: 1\n"
        "ERROR r2e_tests/u.py - no\n1 passed\n"
    )
    assert parse_log(log, "r2e") == {
        "T.test_a": "passed",
        "test_b[x y]": "failed",
        "r2e_tests/u.py": "error",
    }


@pytest.mark.parametrize(
    ("parser", "log", "found"),
    [
        ("parse_log_gotest", "--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.01s)\n",
         {"TestA": "passed", "TestB": "failed"}),
        ("parse_log_cargo", "test a::works ... ok\ntest a::fails ... FAILED\n",
         {"a::works": "passed", "a::fails": "failed"}),
        ("parse_log_jest", "  sum\n    ✓ adds (2 ms)\n    ✕ subtracts (1 ms)\n",
         {"adds": "passed", "subtracts": "failed"}),
    ],
)  # fmt: skip
def test_logs_of_other_languages_are_read_by_the_fields_parsers(
    parser: str, log: str, found: dict[str, str]
) -> None:
    """Go test, cargo and jest, by the names that records carry."""
    assert parse_log(log, parser) == found


def test_scripts_come_from_the_row_or_from_a_folder(tmp_path: Path) -> None:
    """Pro's `run_scripts` folder is read by instance; a record without scripts is named."""
    row = {
        "instance_id": "instance_a", "repo": "a/b", "base_commit": "c0", "patch": "",
        "test_patch": "", "problem_statement": "p", "fail_to_pass": "['t']", "pass_to_pass": "[]",
        "before_repo_set_cmd": "x", "dockerhub_tag": "tag",
        "selected_test_files_to_run": "['a', 'b']",
    }  # fmt: skip
    scripts = tmp_path / "run_scripts"
    (scripts / "instance_a").mkdir(parents=True)
    (scripts / "instance_a/run_script.sh").write_text(RUN)
    (scripts / "instance_a/parser.py").write_text(PARSER)
    rows = tmp_path / "rows.jsonl"
    bad = {**row, "instance_id": "../instance_a"}
    gone = {**row, "instance_id": "instance_b"}
    rows.write_text("".join(json.dumps(r) + "\n" for r in (row, bad, gone)))
    (task,), problems = import_tasks(rows, scripts=scripts)
    install = SweRecord.of(task).install
    assert (install.run_script, install.parser_script) == (RUN, PARSER)
    assert install.script_arguments == ["a,b"]
    assert len(problems) == 2
    assert "has no folder" in problems[0]
    assert "instance_b" in problems[1]


@pytest.mark.parametrize(
    ("install", "said"),
    [
        ({"run_script": "x"}, "go together"),
        ({"junit": ["*.xml"], "log_parser": "parse_log_jest"}, "one of"),
    ],
)
def test_a_record_has_one_way_to_run_its_tests(
    spans: Task, install: dict[str, Any], said: str
) -> None:
    """Contradicting settings are refused when the record is read."""
    from trajgym.envs.swe import InvalidTask

    with pytest.raises(InvalidTask, match=said):
        SweRecord.parse({**spans.data, "install_config": install}, "r")
