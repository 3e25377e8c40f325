"""Running a task's tests in a sandbox, and what the run itself shows about its own honesty.

Pytest's report is the source of results. A test with a random name, which must fail, runs with
them; the report, its own counts, the exit status and (for data sets with a log parser) the printed
results must tell one story.
"""

from __future__ import annotations

import re
import secrets
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._junit import BadReport, parse_junit
from trajgym.envs.swe._layout import REPO
from trajgym.envs.swe._logs import parse_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.envs.sandbox import CommandResult, Sandbox
    from trajgym.envs.swe._junit import TestStatus
    from trajgym.envs.swe._record import SweRecord

__all__ = ["SuiteRun", "pytest_options", "run_task_tests"]

_MAX_REPORT = 64 << 20
_FAILURES = 1  # pytest's exit status when tests ran and some failed: the canary always does
_PYTEST = re.compile(r"(^|[\s/])(pytest|py\.test)(\s|$)")


class SuiteRun(NamedTuple):
    """What a test run gave.

    Attributes:
        results: status by test id.
        problem: why there are no results; empty if there are.
        tampering: what shows that the results were not the tests' own.
    """

    results: dict[str, TestStatus]
    problem: str = ""
    tampering: tuple[str, ...] = ()


def pytest_options(report: str) -> str:
    """Return the options with which every run of ours reports."""
    return (
        "-q --color=no -p no:cacheprovider --maxfail=0 --continue-on-collection-errors "
        f"-o junit_family=xunit1 -o junit_logging=no --junitxml={report}"
    )


async def run_task_tests(
    record: SweRecord, sandbox: Sandbox, work: str, wanted: Sequence[str], seconds: float
) -> SuiteRun:
    """Run a task's tests in its repository as it stands in the sandbox.

    Args:
        record: the task.
        sandbox: where the repository with change and tests lies ready.
        work: folder in the sandbox whose name nobody could guess.
        wanted: ids of the tests to run.
        seconds: limit of the run.

    Raises:
        EnvironmentFault: there is no pytest in the sandbox.
        SandboxDied: the sandbox is gone.
    """
    run = _Run(record, sandbox, work, wanted, seconds)
    return await (run.by_log() if record.install.log_parser else run.by_report())


class _Run:
    def __init__(
        self, record: SweRecord, sandbox: Sandbox, work: str, wanted: Sequence[str], seconds: float
    ) -> None:
        self.record = record
        self.sandbox = sandbox
        self.seconds = seconds
        self.report = f"{work}/report.xml"
        self.log = f"{work}/log"
        self.files = sorted({test.split("::")[0] for test in wanted if "::" in test})
        self.canary = f"test_{secrets.token_hex(8)}"
        folder = self.files[0].rpartition("/")[0] if self.files else ""
        self.canary_file = f"{folder}/{self.canary}.py" if folder else f"{self.canary}.py"

    async def by_report(self) -> SuiteRun:
        await self._plant()
        options = pytest_options(self.report)
        files = " ".join(map(shlex.quote, [*self.files, self.canary_file]))
        done = await self._test(f"{self.record.install.test_cmd} {options} -- {files}")
        if done.timed_out:
            return SuiteRun({}, f"the tests did not end in {self.seconds:g} s")
        try:
            results = await self._results()
        except SandboxFileError:
            return await self._no_report(done)
        except BadReport as error:
            return SuiteRun({}, str(error), (str(error),))
        canary = results.pop(f"{self.canary_file}::{self.canary}", None)
        return _checked(results, canary, done.exit_code)

    async def by_log(self) -> SuiteRun:
        """Read what the tests printed; pytest's report beside it shows printed forgeries."""
        install = self.record.install
        command = install.test_cmd
        if not install.whole_command and self.files:
            command = f"{command} {' '.join(map(shlex.quote, self.files))}"
        last = command.strip().rpartition("\n")[2]
        pytest = bool(_PYTEST.search(last)) and not re.search(r"[|;&<>]", last)
        if pytest:
            await self._plant()
            command = f"{command.strip()} --junitxml={self.report} -o junit_family=xunit1"
            command += f" {shlex.quote(self.canary_file)}"
        done = await self._test(f"{{ {command}\n}} > {self.log} 2>&1")
        if done.timed_out:
            return SuiteRun({}, f"the tests did not end in {self.seconds:g} s")
        text = await self.sandbox.read_file(self.log, limit=_MAX_REPORT)
        assert install.log_parser is not None
        results = parse_log(
            text.decode("utf-8", "replace"),
            install.log_parser,
            instance_id=self.record.instance_id,
            version=self.record.version or "",
        )
        if not pytest:
            return _consistent(results, done.exit_code)
        return await self._compared(results, done.exit_code)

    async def _compared(self, printed: dict[str, TestStatus], exit_code: int) -> SuiteRun:
        """Compare what was printed with pytest's report; the verdict is the parser's."""
        try:
            reported = await self._results()
        except (SandboxFileError, BadReport) as error:
            return SuiteRun({}, f"no report of the test run: {error}", ())
        canary = reported.pop(f"{self.canary_file}::{self.canary}", None)
        printed = {name: s for name, s in printed.items() if self.canary not in name}
        checked = _checked(printed, canary, exit_code)
        by_word: dict[str, set[TestStatus]] = {}
        for test, status in reported.items():
            by_word.setdefault(test.split()[0], set()).add(status)
        forged = [
            name
            for name, status in printed.items()
            if status == "passed" and by_word.get(name) and "passed" not in by_word[name]
        ]
        said = tuple(f"printed as passed, reported otherwise: {name}" for name in forged[:5])
        return checked._replace(tampering=checked.tampering + said)

    async def _plant(self) -> None:
        body = f"def {self.canary}():\n    raise AssertionError\n"
        await self.sandbox.write_file(f"{REPO}/{self.canary_file}", body.encode())

    async def _test(self, command: str) -> CommandResult:
        return await self.sandbox.run(command, timeout=self.seconds, cwd=REPO)

    async def _results(self) -> dict[str, TestStatus]:
        report = await self.sandbox.read_file(self.report, limit=_MAX_REPORT)
        return parse_junit(report, [*self.files, self.canary_file])

    async def _no_report(self, done: CommandResult) -> SuiteRun:
        """Tell a test run that the change broke from a sandbox without pytest."""
        check = await self.sandbox.run("python3 -c 'import pytest'", timeout=60.0, cwd="/")
        said = (done.stdout + done.stderr)[-500:].decode("utf-8", "replace").strip()
        if not check.ok:
            raise EnvironmentFault("grading", f"pytest does not run in the sandbox: {said}")
        if done.oom_killed:
            return SuiteRun({}, "the tests ran out of memory")
        if done.exit_code == 0:
            cause = "the test process ended with status 0 before it could report"
            return SuiteRun({}, cause, (cause,))
        return SuiteRun({}, f"the tests ended with status {done.exit_code} and no report: {said}")


def _checked(results: dict[str, TestStatus], canary: TestStatus | None, exit_code: int) -> SuiteRun:
    """Compare results with the test that must fail and with pytest's exit status."""
    tampering = []
    if canary not in {None, "failed", "error"}:
        tampering.append(f"a test that must fail is reported as {canary}")
    if canary is None and exit_code == _FAILURES:
        tampering.append("pytest ended as usual, but its report lacks a test that was run")
    if exit_code == 0:
        tampering.append("pytest ended with status 0 though a test must fail")
    if not tampering and (canary is None or exit_code != _FAILURES):
        return SuiteRun(
            results, f"the test run was cut short: pytest ended with status {exit_code}"
        )
    return SuiteRun(results, "", tuple(tampering))


def _consistent(results: Mapping[str, TestStatus], exit_code: int) -> SuiteRun:
    """Compare printed results with the exit status, where there is no report."""
    bad = any(status in {"failed", "error"} for status in results.values())
    if not results:
        return SuiteRun({}, f"no test result was printed; the tests ended with status {exit_code}")
    if exit_code and not bad:
        said = f"the tests ended with status {exit_code}, but no failure was printed"
        return SuiteRun(dict(results), said)
    return SuiteRun(dict(results))
