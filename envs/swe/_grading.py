"""One change in one fresh sandbox: applied to a clean copy, with the task's tests."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._extract import git_env, git_setup
from trajgym.envs.swe._hunks import parse_patch
from trajgym.envs.swe._layout import REPO, import_roots
from trajgym.envs.swe._outcome import Graded, wanted
from trajgym.envs.swe._paths import Change, parse_raw_diff, refusal
from trajgym.envs.swe._tampering import READ_FOR, attempts
from trajgym.envs.swe._testrun import SuiteRun, run_task_tests, runs_pytest
from trajgym.envs.swe._twins import twin_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from trajgym.envs.sandbox import CommandResult, Sandbox
    from trajgym.envs.swe._record import SweRecord

__all__ = ["Grading"]

_STEP_SECONDS = 120.0
_READ_PATHS = 50
_READ_BYTES = 1 << 20
_SCRIPTS = {"r2e-gym": ("run_tests.sh", "r2e_tests")}
"""Paths of a shape's images that affect grading: changes of them are not used."""
_LIST = "git diff --cached --raw -z --no-renames --no-abbrev --no-ext-diff HEAD"


class Grading:
    """One change in one fresh sandbox.

    Args:
        record: the task.
        sandbox: a fresh one of the task.
        test_seconds: limit of the test run.
        fresh: starts another sandbox of the task.
        twins: random generator for twins of the tests, which replace them, see
            :mod:`trajgym.envs.swe._twins`; None uses the tests themselves.

    Attributes:
        twinned: ids, without parameters, of the tests that have a twin.
    """

    def __init__(
        self,
        record: SweRecord,
        sandbox: Sandbox,
        test_seconds: float,
        fresh: Callable[[], Awaitable[Sandbox]],
        twins: random.Random | None = None,
    ) -> None:
        self.record = record
        self.sandbox = sandbox
        self.test_seconds = test_seconds
        self.fresh = fresh
        self.twins = twins
        self.twinned: set[str] = set()
        # The agent's code can't guess this name.
        self.work = f"/tmp/trajgym-{secrets.token_hex(8)}"  # noqa: S108  # inside the sandbox
        self.left_out: dict[Change, str] = {}
        self.tried: list[str] = []

    async def run(self, patch: bytes, tests: list[str]) -> Graded:
        """Apply the change, write the tests over it and run some of them.

        Raises:
            EnvironmentFault: the task's own tests can't be applied or run.
            SandboxError: the sandbox failed.
        """
        await self._must("prepare", git_setup(self.work))
        task_tests = await self._paths_of(self.record.test_patch.encode())
        task_tests += _SCRIPTS.get(self.record.shape or "", ())
        problem = await self._apply_change(patch, task_tests) if patch.strip() else ""
        if problem:
            return self._graded(SuiteRun({}, problem))
        if self.record.test_patch.strip():
            await self._apply_tests()
        await self._lay_over(tests)
        await self._must("remove what grading wrote", f"cd {self.work}\nrm -rf ./*")
        return self._graded(
            await run_task_tests(
                self.record, self.sandbox, self.work, tests, self.test_seconds, self.fresh
            )
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
        """Apply the change and revert what is not used; return a problem or ""."""
        await self.sandbox.write_file(f"{self.work}/change.patch", patch)
        script = self._git("apply --index --whitespace=nowarn", "change.patch")
        done = await self._run(script)
        if not done.ok:
            output = done.stderr[-500:].decode("utf-8", "replace").strip() or "timed out"
            return f"the change does not apply: {output}"
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
        await self._revert(list(self.left_out))
        return ""

    async def _added(self) -> dict[bytes, bytes]:
        """Return what the change adds to paths whose content can be an attempt at tampering."""
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

    async def _revert(self, refused: list[Change]) -> None:
        new = b"".join(c.path + b"\0" for c in refused if c.status == "A")
        old = b"".join(c.path + b"\0" for c in refused if c.status != "A")
        if new:
            remove = (
                f"cd {REPO}\ntee {self.work}/new | git update-index -z --force-remove --stdin\n"
            )
            remove += f"xargs -0 rm -rf -- < {self.work}/new"
            await self._must("remove new files", git_env(self.work) + remove, new)
        if old:
            checkout = "checkout -q HEAD --pathspec-from-file=- --pathspec-file-nul"
            await self._must("revert changes", self._git(checkout), old)

    async def _apply_tests(self) -> None:
        await self._must(
            "apply test_patch",
            self._git("apply --whitespace=nowarn", "tests.patch"),
        )

    async def _lay_over(self, tests: list[str]) -> None:
        """Write each test file again: unchanged, or as its twin.

        Both runs write all files in the same way, and the sandbox has no copy of the originals:
        code under test must not be able to distinguish the two.
        """
        if not runs_pytest(self.record.install):
            return
        functions: dict[str, set[str]] = {}
        for test in tests:
            file, _, function = test.partition("[")[0].partition("::")
            functions.setdefault(file, set()).add(function)
        for file, names in functions.items():
            try:
                content = await self.sandbox.read_file(f"{REPO}/{file}")
            except SandboxFileError:
                continue  # a test whose name is not that of its file
            if self.twins is not None:
                twin = await asyncio.to_thread(twin_of, file, content, names, self.twins)
                content = twin.content
                self.twinned |= {f"{file}::{name}" for name in twin.tests}
            await self.sandbox.write_file(f"{REPO}/{file}", content)

    def _git(self, arguments: str, file: str = "") -> str:
        target = f" {self.work}/{file}" if file else ""
        return f"{git_env(self.work)}cd {REPO}\ngit {arguments}{target}"

    async def _run(self, script: str, stdin: bytes = b"") -> CommandResult:
        return await self.sandbox.run(script, timeout=_STEP_SECONDS, cwd="/", stdin=stdin)

    async def _must(self, step: str, script: str, stdin: bytes = b"") -> CommandResult:
        """Run a step of grading; a failure is a fault of the task or of this package."""
        done = await self._run(script, stdin)
        if not done.ok:
            output = done.stderr[-500:].decode("utf-8", "replace").strip() or "timed out"
            name = self.record.instance_id
            raise EnvironmentFault("grading", f"task {name!r}: {step}: {output}")
        return done
