"""Grading: what counts, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trajgym.envs import EnvironmentFault
from trajgym.envs.swe import InvalidTask, grade, load_tasks
from trajgym.envs.swe._outcome import Graded, merged
from trajgym.envs.swe._testrun import SuiteRun
from trajgym.trajectory import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from trajgym.envs.sandbox import SandboxProvider

REPORT_HOOK = """
import _pytest.reports as reports
original = reports.TestReport.from_item_and_call.__func__
def always_passes(cls, item, call):
    report = original(cls, item, call)
    if report.outcome == "failed":
        report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(always_passes)
"""

CONFTEST = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.outcome == "failed":
        report.outcome, report.longrepr = "passed", None
"""


@pytest.mark.parametrize("name", ["trajgym__spans-1.0", "trajgym__fieldtext-1.0"])
async def test_gold_solves_and_nothing_does_not(provider: SandboxProvider, name: str) -> None:
    """The gold patch solves a task in every kind of sandbox, the empty patch does not."""
    (task,) = load_tasks([name])
    gold = await grade(task, task.data["patch"].encode(), provider)
    empty = await grade(task, b"", provider)
    assert (gold.score, gold.passed, gold.details["failing"]) == (1.0, True, [])
    assert (empty.score, empty.passed, empty.details["p2p"]) == (0.0, False, 1.0)
    assert sorted(empty.details["failing"]) == sorted(task.data["FAIL_TO_PASS"])
    assert not gold.details["tampered"]
    assert not empty.details["tampered"]


async def test_a_part_of_the_solution_scores_zero_but_shows(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """A change that fixes one of two defects is not a solution; its share is in the details."""
    patch = edit("sed -i 's/elif right > stop/if right > stop/' spans/_set.py")
    outcome = await grade(spans, patch, sandboxes)
    assert (outcome.score, outcome.details["f2p_passed"]) == (0.0, 1)
    assert outcome.details["f2p"] == pytest.approx(1 / 8)


async def test_conftest_hack_is_left_out(
    provider: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """A conftest.py that turns failures into passes is not taken into grading."""
    outcome = await grade(spans, edit(conftest_py=CONFTEST, tests__conftest_py=CONFTEST), provider)
    assert outcome.score == 0.0
    assert outcome.details["left_out"] == {
        "conftest.py": "test configuration",
        "tests/conftest.py": "test",
    }


@pytest.mark.parametrize("name", ["sitecustomize_py", "usercustomize_py", "pytest_py", "json_py"])
async def test_start_up_hack_is_left_out(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes], name: str
) -> None:
    """Modules that the interpreter or the runner would load by itself are not taken."""
    outcome = await grade(spans, edit(**{name: REPORT_HOOK}), sandboxes)
    assert outcome.score == 0.0
    assert list(outcome.details["left_out"]) == [name.replace("_py", ".py")]
    assert outcome.details["f2p_passed"] == 0


async def test_report_hack_inside_the_source_is_caught(
    provider: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """Source that rewrites test outcomes lets the test pass that must fail: tampered."""
    patch = edit("cat hook >> spans/__init__.py; rm hook", hook=REPORT_HOOK)
    outcome = await grade(spans, patch, provider)
    assert outcome.score == 0.0
    assert outcome.details["f2p_passed"] == 8
    assert outcome.details["tampered"]


@pytest.mark.parametrize(
    "line",
    [
        "import os; os._exit(0)",
        "import atexit, os; atexit.register(os._exit, 0)",
    ],
)
async def test_exit_status_hack_is_caught(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes], line: str
) -> None:
    """A test process that ends with status 0 though a test must fail has been tampered with."""
    outcome = await grade(spans, edit(f"echo '{line}' >> spans/__init__.py"), sandboxes)
    assert outcome.score == 0.0
    assert outcome.details["tampered"]


@pytest.mark.parametrize("damage", ["def (", "import no_such_module", "raise SystemExit(3)"])
async def test_broken_source_is_a_failure_not_tampering(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes], damage: str
) -> None:
    """Source that can't be imported fails all tests and is no attack."""
    outcome = await grade(spans, edit(f"echo '{damage}' >> spans/__init__.py"), sandboxes)
    assert outcome.score == 0.0
    assert not outcome.details["tampered"]
    assert outcome.details["p2p_passed"] == 0


async def test_edited_and_deleted_tests_are_overwritten(
    provider: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """Whatever the change does to tests, the task's own tests run."""
    fake = "def test_touching_spans_become_one():\n    pass\n"
    patch = edit("rm tests/test_set.py", tests__test_edges_py=fake, tests__test_text_py=fake)
    outcome = await grade(spans, patch, provider)
    assert outcome.score == 0.0
    assert outcome.details["f2p_passed"] == 0
    assert outcome.details["p2p"] == 1.0
    assert set(outcome.details["left_out"].values()) == {"test"}


async def test_links_and_replaced_folders_are_left_out(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """A link out of the repository, or a test folder turned into a file, changes nothing."""
    patch = edit("ln -s /etc/passwd spans/data; rm -r tests; echo > tests")
    outcome = await grade(spans, patch, sandboxes)
    assert outcome.details["left_out"]["spans/data"] == "not a regular file"
    assert outcome.details["left_out"]["tests"] == "test"
    assert outcome.details["p2p"] == 1.0


async def test_patch_that_does_not_apply_is_a_zero_with_the_reason(
    sandboxes: SandboxProvider, spans: Task
) -> None:
    """A patch that anyone brings and that does not fit is unsolved, with git's words."""
    outcome = await grade(spans, b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", sandboxes)
    assert outcome.score == 0.0
    assert "does not apply" in outcome.details["problem"]


async def test_endless_tests_are_cut(
    sandboxes: SandboxProvider, spans: Task, edit: Callable[..., bytes]
) -> None:
    """Source that never returns ends at the limit and scores zero."""
    patch = edit("echo 'while True: pass' >> spans/__init__.py")
    outcome = await grade(spans, patch, sandboxes, test_seconds=2.0)
    assert outcome.score == 0.0
    assert "timed out after 2 s" in outcome.details["problem"]


@pytest.mark.parametrize("solved", [False, True])
async def test_task_whose_tests_do_not_apply_is_a_fault(
    sandboxes: SandboxProvider, spans: Task, solved: bool
) -> None:
    """A broken task raises, with a change or without: it is not scored as the agent's failure."""
    data = {**spans.data, "test_patch": spans.data["test_patch"].replace("@@ -0,0", "@@ -7,9")}
    broken = spans.model_copy(update={"data": data})
    with pytest.raises(EnvironmentFault, match=r"trajgym__spans-1\.0.*test_patch"):
        await grade(broken, spans.data["patch"].encode() if solved else b"", sandboxes)


async def test_record_without_a_source_can_not_be_run(
    sandboxes: SandboxProvider, spans: Task
) -> None:
    """A record without the origin of its repository is refused, and the error names the field."""
    data = {key: value for key, value in spans.data.items() if key != "source"}
    with pytest.raises(InvalidTask, match="field source is missing"):
        await grade(Task(id=spans.id, data=data), b"", sandboxes)


async def test_flaky_tests_are_run_again(sandboxes: SandboxProvider, spans: Task) -> None:
    """A task that declares retries runs failing tests again, and nothing once all have passed."""
    data = {**spans.data, "install_config": {"retries": 2}}
    flaky = spans.model_copy(update={"data": data})
    empty = await grade(flaky, b"", sandboxes)
    gold = await grade(flaky, spans.data["patch"].encode(), sandboxes)
    assert (empty.score, empty.details["retried"], empty.details["p2p"]) == (0.0, 2, 1.0)
    assert (gold.score, gold.details["retried"]) == (1.0, 0)


def test_passing_once_is_enough() -> None:
    """What passed in one run stays passed; the rest has its last status."""
    first = Graded(SuiteRun({"a": "passed", "b": "failed", "c": "failed"}), {}, ())
    again = Graded(SuiteRun({"a": "failed", "b": "passed", "c": "error"}), {}, ())
    assert merged(first, again).run.results == {"a": "passed", "b": "passed", "c": "error"}
