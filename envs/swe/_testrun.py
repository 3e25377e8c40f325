"""Runs a task's tests in a sandbox, and checks the run for tampering.

Results come from pytest's report. A test with a random name, which must fail, runs with the tests.
The report, its counts, the exit status and (for data sets with a log parser) the printed results
must agree.
"""

from __future__ import annotations

import json
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
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trajgym.envs.sandbox import CommandResult, Sandbox
    from trajgym.envs.swe._junit import TestStatus
    from trajgym.envs.swe._record import Install, SweRecord

__all__ = ["SuiteRun", "pytest_options", "run_task_tests", "runs_pytest"]

_MAX_REPORT = 64 << 20
_FAILURES = 1  # pytest's exit status when tests ran and some failed: the canary always does
_PYTEST = re.compile(r"(^|[\s/])(pytest|py\.test)(\s|$)")


class SuiteRun(NamedTuple):
    """The result of a test run.

    Attributes:
        results: status by test id.
        problem: why there are no results; empty if there are.
        tampering: evidence that the results were changed.
    """

    results: dict[str, TestStatus]
    problem: str = ""
    tampering: tuple[str, ...] = ()


def pytest_options(report: str) -> str:
    """Return the pytest options of every run."""
    return (
        "-q --color=no -p no:cacheprovider --maxfail=0 --continue-on-collection-errors "
        f"-o junit_family=xunit1 -o junit_logging=no --junitxml={report}"
    )


def runs_pytest(install: Install) -> bool:
    """Return whether tests are run by pytest, so that its report can be requested."""
    if install.junit or install.run_script:
        return False
    if install.log_parser is None:
        return True
    last = install.test_cmd.strip().rpartition("\n")[2]
    return bool(_PYTEST.search(last)) and not re.search(r"[|;&<>]", last)


async def run_task_tests(
    record: SweRecord,
    sandbox: Sandbox,
    work: str,
    wanted: Sequence[str],
    seconds: float,
    fresh: Callable[[], Awaitable[Sandbox]],
) -> SuiteRun:
    """Run a task's tests in the current repository of a sandbox.

    Args:
        record: the task.
        sandbox: that contains the repository with change and tests.
        work: folder in the sandbox whose name can't be guessed.
        wanted: ids of the tests to run.
        seconds: limit of the run.
        fresh: starts another sandbox, for what must not run beside the code under test.

    Raises:
        EnvironmentFault: there is no pytest in the sandbox.
        SandboxDied: the sandbox is gone.
    """
    run = _Run(record, sandbox, work, wanted, seconds)
    if record.install.run_script:
        return await run.by_script(fresh)
    if record.install.junit:
        return await run.by_files()
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
            return SuiteRun({}, f"the tests timed out after {self.seconds:g} s")
        try:
            results = await self._results()
        except SandboxFileError:
            return await self._no_report(done)
        except BadReport as error:
            return SuiteRun({}, str(error), (str(error),))
        canary = results.pop(f"{self.canary_file}::{self.canary}", None)
        return _checked(results, canary, done.exit_code)

    async def by_log(self) -> SuiteRun:
        """Parse the tests' output; pytest's report shows whether it was forged."""
        install = self.record.install
        command = install.test_cmd
        if not install.whole_command and self.files:
            command = f"{command} {' '.join(map(shlex.quote, self.files))}"
        pytest = runs_pytest(install)
        if pytest:
            await self._plant()
            command = f"{command.strip()} --junitxml={self.report} -o junit_family=xunit1"
            command += f" {shlex.quote(self.canary_file)}"
        done = await self._test(f"{{ {command}\n}} > {self.log} 2>&1")
        if done.timed_out:
            return SuiteRun({}, f"the tests timed out after {self.seconds:g} s")
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

    async def by_files(self) -> SuiteRun:
        """Read the JUnit XML files that a runner other than pytest writes."""
        install = self.record.install
        listing = "".join(
            f"find . -path './{pattern}' -type f -print0;" for pattern in install.junit
        )
        await self.sandbox.run(f"{listing} | xargs -0 rm -f --", cwd=REPO)  # the agent's files
        done = await self._test(f"{{ {install.test_cmd}\n}} > {self.log} 2>&1")
        if done.timed_out:
            return SuiteRun({}, f"the tests timed out after {self.seconds:g} s")
        found = await self.sandbox.run(listing, timeout=60.0, cwd=REPO)
        results: dict[str, TestStatus] = {}
        for path in filter(None, found.stdout.decode("utf-8", "replace").split("\0")):
            try:
                report = await self.sandbox.read_file(f"{REPO}/{path}", limit=_MAX_REPORT)
                results |= parse_junit(report, [])
            except (SandboxFileError, BadReport) as error:
                return SuiteRun({}, f"{path}: {error}")
        return _consistent(results, done.exit_code)

    async def by_script(self, fresh: Callable[[], Awaitable[Sandbox]]) -> SuiteRun:
        """Run a data set's own script; its parser runs in a sandbox without the code under test."""
        install = self.record.install
        script = f"{self.log}.sh"
        await self.sandbox.write_file(script, install.run_script.encode())
        arguments = " ".join(map(shlex.quote, install.script_arguments))
        done = await self._test(f"bash {script} {arguments} > {self.log}.out 2> {self.log}.err")
        if done.timed_out:
            return SuiteRun({}, f"the tests timed out after {self.seconds:g} s")
        logs = [
            await self.sandbox.read_file(f"{self.log}.{kind}", limit=_MAX_REPORT)
            for kind in ("out", "err")
        ]
        async with await fresh() as parsing:
            folder = self.log.rpartition("/")[0]
            names = [f"{folder}/{name}" for name in ("out", "err", "parser.py")]
            contents = [*logs, install.parser_script.encode()]
            for name, content in zip(names, contents, strict=True):
                await parsing.write_file(name, content)
            line = f"$(command -v python3 || command -v python) {names[2]} {names[0]} {names[1]}"
            parsed = await parsing.run(f"{line} {folder}/results.json", timeout=120.0, cwd="/")
            try:
                text = await parsing.read_file(f"{folder}/results.json", limit=_MAX_REPORT)
                tests = json.loads(text)["tests"]
                results = {str(t["name"]): script_status(str(t["status"])) for t in tests}
            except (SandboxFileError, ValueError, KeyError, TypeError) as error:
                output = parsed.stderr[-300:].decode("utf-8", "replace").strip()
                return SuiteRun({}, f"parser_script gave no results: {error} {output}".strip())
        if not results:
            return SuiteRun({}, f"no test result; the tests ended with status {done.exit_code}")
        return SuiteRun(results)

    async def _compared(self, printed: dict[str, TestStatus], exit_code: int) -> SuiteRun:
        """Compare the output with pytest's report; the result is the parser's."""
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
        """Distinguish a test run that the change broke from a sandbox without pytest."""
        check = await self.sandbox.run("python3 -c 'import pytest'", timeout=60.0, cwd="/")
        output = (done.stdout + done.stderr)[-500:].decode("utf-8", "replace").strip()
        if not check.ok:
            raise EnvironmentFault("grading", f"pytest does not run in the sandbox: {output}")
        if done.oom_killed:
            return SuiteRun({}, "the tests ran out of memory")
        if done.exit_code == 0:
            cause = "the test process ended with status 0 before it could report"
            return SuiteRun({}, cause, (cause,))
        return SuiteRun({}, f"the tests ended with status {done.exit_code} and no report: {output}")


def script_status(said: str) -> TestStatus:
    """Return the status that a parser script's word means; an unknown one did not pass."""
    words: dict[str, TestStatus] = {"PASSED": "passed", "SKIPPED": "skipped", "FAILED": "failed"}
    return words.get(said.upper(), "error")


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
    """Compare printed results with the exit status, without a report."""
    bad = any(status in {"failed", "error"} for status in results.values())
    if not results:
        return SuiteRun({}, f"no test result was printed; the tests ended with status {exit_code}")
    if exit_code and not bad:
        text = f"the tests ended with status {exit_code}, but no failure was printed"
        return SuiteRun(dict(results), text)
    return SuiteRun(dict(results))
