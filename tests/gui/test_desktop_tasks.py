"""Desktop tasks: what a check accepts, and which records of others can run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajgym.envs.gui import Check, DesktopRecord, load_desktop_tasks, osworld_tasks
from trajgym.envs.gui.desktop import osworld_task
from trajgym.trajectory import InvalidInput, Task


@pytest.mark.parametrize(
    ("tests", "found", "holds"),
    [
        ({"equals": "a\n"}, "a\n", True),
        ({"equals": "a\n"}, "a", False),
        ({"one_of": ["a", "b"]}, "b", True),
        ({"one_of": ["a", "b"]}, "c", False),
        ({"contains": ["a", "b"]}, "b and a", True),
        ({"contains": ["a", "b"]}, "b", False),
        ({"contains": ["a"], "lacks": ["b"]}, "ab", False),
        ({"exists": False}, None, True),
        ({"exists": False}, "", False),
        ({"exists": True}, "", True),
        ({"contains": ["a"]}, None, False),
        ({"lacks": ["a"]}, None, False),
    ],
)
def test_checks(tests: dict[str, Any], found: str | None, holds: bool) -> None:
    """Every test that is given must pass; a missing file passes only if it should be missing."""
    assert Check(of="file", name="/x", **tests).holds(found) == holds


def record(**changes: Any) -> dict[str, Any]:
    """A record in OSWorld's shape that can run here."""
    return {
        "id": "b1",
        "snapshot": "os",
        "instruction": "Make the folder photos in the home folder.",
        "config": [
            {"type": "execute", "parameters": {"command": ["mkdir", "-p", "/home/user/Desktop"]}},
            {"type": "launch", "parameters": {"command": "pcmanfm /home/user"}},
            {"type": "sleep", "parameters": {"seconds": 0.5}},
        ],
        "related_apps": ["os"],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["ls", "-d", "/home/user/photos"]},
            "expected": {"type": "rule", "rules": {"expected": "/home/user/photos\n"}},
        },
        **changes,
    }


def evaluated(**changes: Any) -> dict[str, Any]:
    evaluator = record()["evaluator"]
    return record(evaluator={**evaluator, **changes})


def test_an_osworld_record_becomes_a_task() -> None:
    """Set-up, result and metric are carried over."""
    task = osworld_task(record())
    made = DesktopRecord.of(task)
    assert (task.id, made.source) == ("osworld-b1", "osworld")
    assert task.prompt == "Make the folder photos in the home folder."
    assert [step.do for step in made.setup] == ["run", "launch", "sleep"]
    assert made.checks == [
        Check(of="command", name=["ls", "-d", "/home/user/photos"], equals="/home/user/photos\n")
    ]


def test_several_metrics_and_infeasible_records() -> None:
    """Lists of metrics keep how they are joined; an infeasible task has nothing to check."""
    one = record()["evaluator"]
    rules = {"include": ["a"], "exclude": ["b"]}
    both = {
        "func": ["exact_match", "check_include_exclude"],
        "conj": "or",
        "result": [one["result"], one["result"]],
        "expected": [one["expected"], {"type": "rule", "rules": rules}],
    }
    made = DesktopRecord.of(osworld_task(record(evaluator=both)))
    assert made.any_of
    assert (made.checks[1].contains, made.checks[1].lacks) == (["a"], ["b"])
    assert DesktopRecord.of(osworld_task(record(evaluator={"func": "infeasible"}))).infeasible


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            record(config=[{"type": "launch", "parameters": {"command": ["google-chrome"]}}]),
            "the application 'google-chrome' is not on this desktop",
        ),
        (
            record(config=[{"type": "download", "parameters": {"files": []}}]),
            "set-up of type 'download' can't be done here",
        ),
        (
            record(config=[{"type": "open", "parameters": {"path": "/home/user/a.xlsx"}}]),
            "nothing on this desktop opens '/home/user/a.xlsx'",
        ),
        (
            record(
                config=[
                    {
                        "type": "execute",
                        "parameters": {"command": ["python", "-c", "import pyautogui"]},
                    }
                ]
            ),
            "needs 'pyautogui'",
        ),
        (evaluated(func="compare_table"), "the metric 'compare_table' is not known here"),
        (
            evaluated(result={"type": "vm_screenshot"}),
            "results of type 'vm_screenshot' can't be had here",
        ),
        (
            evaluated(expected={"type": "cloud_file", "path": "x"}),
            "what is expected comes from 'cloud_file'",
        ),
        (evaluated(options={"ignore_case": True}), "options of metrics are not known here"),
        (record(instruction=""), "needs an id, an instruction"),
        (evaluated(expected={"type": "rule"}), "malformed"),
    ],
)
def test_records_that_cannot_run_are_refused_by_name(bad: dict[str, Any], reason: str) -> None:
    """Programs that are missing here are reported before any session begins."""
    with pytest.raises(InvalidInput, match="OSWorld record 'b1'") as raised:
        osworld_task(bad)
    assert reason in str(raised.value)


def test_a_set_of_records_is_sorted() -> None:
    """Those that can run become tasks, the others keep their reasons."""
    found = osworld_tasks([record(), evaluated(func="compare_table")])
    assert [task.id for task in found.tasks] == ["osworld-b1"]
    assert [refusal.id for refusal in found.refused] == ["b1"]
    assert "compare_table" in found.refused[0].reason


def test_files_of_tasks(tmp_path: Path) -> None:
    """One file can have our records and OSWorld's; an invalid one is reported with its line."""
    own = {
        "id": "mine",
        "data": {"instruction": "x", "checks": [{"of": "clipboard", "equals": "y"}]},
    }
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(json.dumps(item) for item in (own, record())))
    assert [task.id for task in load_desktop_tasks(str(file))] == ["mine", "osworld-b1"]
    file.write_text(json.dumps({"id": "mine", "data": {"instruction": "x"}}))
    with pytest.raises(InvalidInput, match="task 'mine': no checks"):
        load_desktop_tasks(str(file))
    for check in ({"of": "clipboard"}, {"of": "windows", "lacks": [""]}, {"of": "command"}):
        file.write_text(json.dumps({"id": "m", "data": {"instruction": "x", "checks": [check]}}))
        with pytest.raises(InvalidInput, match=r"checks\.0"):
            load_desktop_tasks(str(file))
    file.write_text(json.dumps([own, own]))
    with pytest.raises(InvalidInput, match="used twice"):
        load_desktop_tasks(str(file.rename(tmp_path / "twice.json")))
    with pytest.raises(InvalidInput, match="or use 'builtin'"):
        load_desktop_tasks(str(tmp_path / "none.json"))


def test_builtin_tasks_are_well_formed() -> None:
    """Each kind of record is read by its own reader, and has an instruction."""
    tasks = load_desktop_tasks("builtin")
    assert len({task.id for task in tasks}) == len(tasks) >= 6
    assert all(DesktopRecord.of(task).instruction == task.prompt for task in tasks)


def test_unknown_fields_are_refused() -> None:
    """A misspelt field of a record is an error, not a task without it."""
    data = {"instruction": "x", "checks": [{"of": "file", "name": "a", "equal": "x"}]}
    with pytest.raises(InvalidInput, match=r"checks\.0\.equal"):
        DesktopRecord.of(Task(id="t", data=data))
