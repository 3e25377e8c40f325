"""Grading: the agent's change on a clean copy, under the task's own tests, in a fresh sandbox.

Layers, each of which stops what the others can't: only regular source files of the change are
taken (:mod:`trajgym.envs.swe._paths`); tests come from the base and the task; results come from a
report with exact test ids; a test with a random name that must fail shows whether outcomes are
rewritten; pytest's exit status must agree (:mod:`trajgym.envs.swe._testrun`). What can't be
stopped: code under test shares a process with the test runner, so code that finds out the random
test and fails it alone is not caught.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._extract import git_env, git_setup
from trajgym.envs.swe._hunks import parse_patch
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._layout import REPO, import_roots
from trajgym.envs.swe._outcome import Graded, merged, outcome_of, passing, wanted
from trajgym.envs.swe._paths import Change, parse_raw_diff, refusal
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._tampering import READ_FOR, attempts
from trajgym.envs.swe._testrun import SuiteRun, run_task_tests

if TYPE_CHECKING:
    from trajgym.envs.sandbox import CommandResult, Sandbox, SandboxProvider, SandboxSpec
    from trajgym.trajectory import Outcome, Task

__all__ = ["grade", "ungraded"]

_STEP_SECONDS = 120.0
_READ_PATHS = 50
_READ_BYTES = 1 << 20
_LIST = "git diff --cached --raw -z --no-renames --no-abbrev --no-ext-diff HEAD"


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
    as expected (xfail); a test that is skipped or missing has not passed. Records with a log parser
    follow the rules of the ``swebench`` package instead, see :mod:`trajgym.envs.swe._outcome`.
    ``details`` holds ``f2p_passed``, ``f2p_total``, ``f2p`` (share) and the same for ``p2p``,
    ``failing`` (at most 20 ids), ``left_out`` (paths not taken, with the reason), ``tampered``,
    ``tampering`` (what shows that outcomes were rewritten; the score is 0), ``tried`` (attempts
    that were taken back and had no effect; the score stands), ``retried`` and ``problem``.

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
    graded = Graded(SuiteRun({}), {}, ())
    tests = wanted(record)
    for again in range(record.install.retries + 1):
        async with await provider.start(spec) as sandbox:
            found = await _Grading(record, sandbox, test_seconds).run(patch, tests)
        graded = merged(graded, found) if again else found
        tests = [test for test in tests if not passing(record, test, graded.run.results)]
        if not tests or graded.run.problem or graded.run.tampering:
            break
    return outcome_of(record, graded, len(patch), again)


def ungraded(task: Task, problem: str) -> Outcome:
    """Return the outcome of an attempt that left no change which could be graded."""
    return outcome_of(SweRecord.of(task), Graded(SuiteRun({}, problem), {}, ()), 0)


class _Grading:
    """One change in one fresh sandbox."""

    def __init__(self, record: SweRecord, sandbox: Sandbox, test_seconds: float) -> None:
        self.record = record
        self.sandbox = sandbox
        self.test_seconds = test_seconds
        # No name in the sandbox can be guessed by what the agent wrote.
        self.work = f"/tmp/trajgym-{secrets.token_hex(8)}"  # noqa: S108  # inside the sandbox
        self.left_out: dict[Change, str] = {}
        self.tried: list[str] = []

    async def run(self, patch: bytes, tests: list[str]) -> Graded:
        await self._must("prepare", git_setup(self.work))
        task_tests = await self._paths_of(self.record.test_patch.encode())
        problem = await self._apply_change(patch, task_tests) if patch.strip() else ""
        if problem:
            return self._graded(SuiteRun({}, problem))
        if self.record.test_patch.strip():
            await self._apply_tests()
        return self._graded(
            await run_task_tests(self.record, self.sandbox, self.work, tests, self.test_seconds)
        )

    def _graded(self, run: SuiteRun) -> Graded:
        left_out = {change.text: reason for change, reason in self.left_out.items()}
        return Graded(run, left_out, tuple(self.tried))

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
        sources = {changed.path for changed in parse_patch(self.record.patch)}
        for change in parse_raw_diff(listing.stdout):
            if reason := refusal(change, roots, task_tests, sources):
                self.left_out[change] = reason
        own = {*task_tests, *(test.split("::")[0] for test in wanted(self.record))}
        self.tried = attempts(self.left_out, await self._added(), own)
        await self._take_back(list(self.left_out))
        return ""

    async def _added(self) -> dict[bytes, bytes]:
        """Return what the change adds to paths whose content tells an attempt from an edit."""
        paths = [
            change.path
            for change, reason in self.left_out.items()
            if reason in READ_FOR and change.status != "D"
        ]
        added: dict[bytes, bytes] = {}
        for path in paths[:_READ_PATHS]:
            done = await self._run(
                f"{git_env(self.work)}cd {REPO}\nxargs -0 git diff --cached -U0 --no-renames "
                f"--text --no-color --no-ext-diff --no-textconv HEAD -- | head -c {_READ_BYTES}",
                path + b"\0",
            )
            lines = done.stdout.split(b"\n")
            added[path] = b"\n".join(
                line[1:] for line in lines if line.startswith(b"+") and line[:4] != b"+++ "
            )
        return added

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
