"""Grading: the agent's change on a clean copy, under the task's own tests, in a fresh sandbox.

Layers, each of which stops what the others can't: only regular source files of the change are
taken (:mod:`trajgym.envs.swe._paths`); tests come from the base and the task; results come from a
report with exact test ids; a test with a random name that must fail shows whether outcomes are
rewritten; pytest's exit status must agree. What can't be stopped: code under test shares a process
with the test runner, so code that finds out the random test and fails it alone is not caught.
"""

from __future__ import annotations

import secrets
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._extract import git_env, git_setup
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._junit import BadReport, parse_junit, reported_id
from trajgym.envs.swe._layout import REPO, RUNNER, import_roots
from trajgym.envs.swe._paths import Change, parse_raw_diff, refusal
from trajgym.envs.swe._record import SweRecord
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from trajgym.envs.sandbox import CommandResult, Sandbox, SandboxProvider, SandboxSpec
    from trajgym.envs.swe._junit import TestStatus
    from trajgym.trajectory import Task

__all__ = ["grade", "ungraded"]

_STEP_SECONDS = 120.0
_MAX_REPORT = 64 << 20
_SHOWN = 20
_LIST = "git diff --cached --raw -z --no-renames --no-abbrev --no-ext-diff HEAD"
_FAILURES = 1  # pytest's exit status when tests ran and some failed: the canary always does


class _Run(NamedTuple):
    """What the test run gave; ``problem`` says why there are no results."""

    results: dict[str, TestStatus]
    problem: str = ""
    tampering: tuple[str, ...] = ()


async def grade(
    task: Task,
    patch: bytes,
    provider: SandboxProvider,
    *,
    spec: SandboxSpec | None = None,
    test_seconds: float = 300.0,
) -> Outcome:
    """Return whether a change solves a task.

    Args:
        task: a SWE task.
        patch: the change against the base, as `git diff --binary` writes it; empty for none.
        provider: where to run.
        spec: what :func:`prepare` gave, if it was called already.
        test_seconds: limit for the test run.

    The score is 1.0 if every FAIL_TO_PASS test passes and every PASS_TO_PASS test passes or fails
    as expected (xfail); a test that is skipped or missing has not passed. ``details`` holds
    ``f2p_passed``, ``f2p_total``, ``f2p`` (share) and the same for ``p2p``, ``failing`` (at most 20
    ids), ``left_out`` (paths not taken, with the reason), ``tampered``, ``tampering`` and
    ``problem``.

    Raises:
        InvalidTask: the task is no SWE task.
        SandboxError: the sandbox failed; nothing is known about the change.
        EnvironmentFault: the task itself can't be graded: its own tests do not apply or run.
    """
    record = SweRecord.of(task)
    if spec is None:
        spec = await prepare(task, provider)
    try:
        return await _grade_once(record, patch, provider, spec, test_seconds)
    except (EnvironmentFault, SandboxFileError) as fault:
        if not patch.strip():
            raise
        # Nobody gets out of a bad score by a change that breaks the grading of itself.
        await _grade_once(record, b"", provider, spec, test_seconds)
        return ungraded(task, f"the change breaks its grading: {fault}")


async def _grade_once(
    record: SweRecord,
    patch: bytes,
    provider: SandboxProvider,
    spec: SandboxSpec,
    test_seconds: float,
) -> Outcome:
    async with await provider.start(spec) as sandbox:
        return await _Grading(record, sandbox, test_seconds).run(patch)


def ungraded(task: Task, problem: str) -> Outcome:
    """Return the outcome of an attempt that left no change which could be graded."""
    return _outcome(SweRecord.of(task), _Run({}, problem), b"", {})


class _Grading:
    """One change in one fresh sandbox."""

    def __init__(self, record: SweRecord, sandbox: Sandbox, test_seconds: float) -> None:
        self.record = record
        self.sandbox = sandbox
        self.test_seconds = test_seconds
        # No name in the sandbox can be guessed by what the agent wrote.
        self.work = f"/tmp/trajgym-{secrets.token_hex(8)}"  # noqa: S108  # inside the sandbox
        self.left_out: dict[str, str] = {}

    async def run(self, patch: bytes) -> Outcome:
        await self._must("prepare", git_setup(self.work))
        task_tests = await self._paths_of(self.record.test_patch.encode())
        if patch.strip() and (problem := await self._apply_change(patch, task_tests)):
            return _outcome(self.record, _Run({}, problem), patch, self.left_out)
        if self.record.test_patch.strip():
            await self._apply_tests()
        return _outcome(self.record, await self._run_tests(), patch, self.left_out)

    async def _paths_of(self, patch: bytes) -> list[str]:
        """Return the paths that the task's own test patch writes."""
        if not patch.strip():
            return []
        await self.sandbox.write_file(f"{self.work}/tests.patch", patch)
        script = (
            f"{git_env(self.work)}cd {REPO}\nexport GIT_INDEX_FILE={self.work}/tests.index\n"
            f"cp {self.work}/git/index {self.work}/tests.index\n"
            f"git apply --cached --whitespace=nowarn {self.work}/tests.patch\n{_LIST}"
        )
        done = await self._must("read test_patch", script)
        if done.dropped_stdout:
            name = self.record.instance_id
            raise EnvironmentFault("grading", f"task {name!r}: test_patch is too large")
        return [change.text for change in parse_raw_diff(done.stdout)]

    async def _apply_change(self, patch: bytes, task_tests: list[str]) -> str:
        """Apply the change and take back what does not count; return a problem or ''."""
        await self.sandbox.write_file(f"{self.work}/change.patch", patch)
        script = self._git("apply --index --whitespace=nowarn", "change.patch")
        done = await self._run(script)
        if not done.ok:
            said = done.stderr[-500:].decode("utf-8", "replace").strip() or "no end in time"
            return f"the change does not apply: {said}"
        listing = await self._must("list the change", f"{git_env(self.work)}cd {REPO}\n{_LIST}")
        if listing.dropped_stdout:
            return "the change touches too many files"
        roots = import_roots(self.record)
        refused: list[Change] = []
        for change in parse_raw_diff(listing.stdout):
            if reason := refusal(change, roots, task_tests):
                refused.append(change)
                self.left_out[change.text] = reason
        await self._take_back(refused)
        return ""

    async def _take_back(self, refused: list[Change]) -> None:
        new = b"".join(c.path + b"\0" for c in refused if c.status == "A")
        old = b"".join(c.path + b"\0" for c in refused if c.status != "A")
        if new:
            remove = (
                f"cd {REPO}\ntee {self.work}/new | git update-index -z --force-remove --stdin\n"
            )
            remove += f"xargs -0 rm -rf -- < {self.work}/new"
            await self._must("take back new files", git_env(self.work) + remove, new)
        if old:
            checkout = "checkout -q HEAD --pathspec-from-file=- --pathspec-file-nul"
            await self._must("take back changes", self._git(checkout), old)

    async def _apply_tests(self) -> None:
        await self._must(
            "apply test_patch",
            self._git("apply --whitespace=nowarn", "tests.patch"),
        )

    async def _run_tests(self) -> _Run:
        record = self.record
        files = sorted({test.split("::")[0] for test in _wanted(record)})
        canary = f"test_{secrets.token_hex(8)}"
        folder = files[0].rpartition("/")[0]
        canary_file = f"{folder}/{canary}.py" if folder else f"{canary}.py"
        body = f"def {canary}():\n    raise AssertionError\n"
        await self.sandbox.write_file(f"{REPO}/{canary_file}", body.encode())
        report = f"{self.work}/report.xml"
        command = " ".join([
            record.install.test_cmd, "-q --color=no -p no:cacheprovider",
            "--continue-on-collection-errors -o junit_family=xunit1 -o junit_logging=no",
            f"--junitxml={report}", "--", *map(shlex.quote, [*files, canary_file]),
        ])  # fmt: skip
        done = await self.sandbox.run(command, timeout=self.test_seconds, cwd=REPO)
        if done.timed_out:
            return _Run({}, f"the tests did not end in {self.test_seconds:g} s")
        try:
            results = parse_junit(
                await self.sandbox.read_file(report, limit=_MAX_REPORT), [*files, canary_file]
            )
        except SandboxFileError:
            return await self._no_report(done)
        except BadReport as error:
            return _Run({}, str(error), (str(error),))
        return _checked(results, results.pop(f"{canary_file}::{canary}", None), done.exit_code)

    async def _no_report(self, done: CommandResult) -> _Run:
        """Tell a test run that the change broke from a sandbox without pytest."""
        check = await self._run(f"PYTHONPATH={RUNNER}/site python3 -c 'import pytest'")
        said = (done.stdout + done.stderr)[-500:].decode("utf-8", "replace").strip()
        if not check.ok:
            raise EnvironmentFault("grading", f"pytest does not run in the sandbox: {said}")
        if done.oom_killed:
            return _Run({}, "the tests ran out of memory")
        if done.exit_code == 0:
            cause = "the test process ended with status 0 before it could report"
            return _Run({}, cause, (cause,))
        return _Run({}, f"the tests ended with status {done.exit_code} and no report: {said}")

    def _git(self, arguments: str, file: str = "") -> str:
        target = f" {self.work}/{file}" if file else ""
        return f"{git_env(self.work)}cd {REPO}\ngit {arguments}{target}"

    async def _run(self, script: str, stdin: bytes = b"") -> CommandResult:
        return await self.sandbox.run(script, timeout=_STEP_SECONDS, cwd="/", stdin=stdin)

    async def _must(self, step: str, script: str, stdin: bytes = b"") -> CommandResult:
        """Run a step of ours; if it fails, the task or we are at fault."""
        done = await self._run(script, stdin)
        if not done.ok:
            said = done.stderr[-500:].decode("utf-8", "replace").strip() or "no end in time"
            name = self.record.instance_id
            raise EnvironmentFault("grading", f"task {name!r}: {step}: {said}")
        return done


def _outcome(record: SweRecord, run: _Run, patch: bytes, left_out: dict[str, str]) -> Outcome:
    results = run.results
    f2p = [t for t in record.FAIL_TO_PASS if results.get(reported_id(t)) == "passed"]
    p2p = [t for t in record.PASS_TO_PASS if results.get(reported_id(t)) in {"passed", "xfailed"}]
    passing = {*f2p, *p2p}
    failing = [test for test in _wanted(record) if test not in passing]
    passed = not failing and not run.problem and not run.tampering
    details: dict[str, Any] = {
        **_share("f2p", len(f2p), len(record.FAIL_TO_PASS)),
        **_share("p2p", len(p2p), len(record.PASS_TO_PASS)),
        "failing": failing[:_SHOWN],
        "failing_total": len(failing),
        "left_out": dict(list(left_out.items())[:_SHOWN]),
        "left_out_total": len(left_out),
        "tampered": bool(run.tampering),
        "tampering": list(run.tampering),
        "problem": run.problem,
        "patch_bytes": len(patch),
    }
    return Outcome(score=float(passed), passed=passed, details=details)


def _wanted(record: SweRecord) -> list[str]:
    return [*record.FAIL_TO_PASS, *record.PASS_TO_PASS]


def _share(name: str, count: int, total: int) -> dict[str, float]:
    share = count / total if total else 1.0
    return {f"{name}_passed": count, f"{name}_total": total, name: share}


def _checked(results: dict[str, TestStatus], canary: TestStatus | None, exit_code: int) -> _Run:
    """Compare results with the test that must fail and with pytest's exit status."""
    tampering = []
    if canary not in {None, "failed", "error"}:
        tampering.append(f"a test that must fail is reported as {canary}")
    if exit_code == 0:
        tampering.append("pytest ended with status 0 though a test must fail")
    if not tampering and (canary is None or exit_code != _FAILURES):
        return _Run(results, f"the test run was cut short: pytest ended with status {exit_code}")
    return _Run(results, "", tuple(tampering))
