"""Runs complete test suites, to determine which tests detect a bug."""

from __future__ import annotations

import secrets
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._errors import InvalidTask
from trajgym.envs.swe._extract import git_env, git_setup
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._junit import BadReport, parse_junit
from trajgym.envs.swe._layout import REPO
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._testrun import pytest_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider, SandboxSpec
    from trajgym.envs.swe._junit import TestStatus
    from trajgym.envs.swe._record import BuiltSource, Install

__all__ = ["Suite", "passed_in"]


class Suite(NamedTuple):
    """A tree with its tests, ready to be run any number of times, each in a fresh sandbox.

    Attributes:
        spec: spec of the sandbox; the tree is at the repository's path.
        provider: starts the sandboxes.
        install: how tests are run.
        tests: folders or files to run, relative to the repository.
        seconds: limit of one run.
    """

    spec: SandboxSpec
    provider: SandboxProvider
    install: Install
    tests: tuple[str, ...]
    seconds: float

    @classmethod
    async def of_base(
        cls,
        source: BuiltSource,
        install: Install,
        tests: Sequence[str],
        provider: SandboxProvider,
        *,
        seconds: float = 120.0,
        cache_dir: Path | None = None,
    ) -> Suite:
        """Return the suite of a source's base tree."""
        draft = SweRecord(
            instance_id=f"suite-{source.kind}",
            repo="",
            base_commit="",
            problem_statement="",
            patch="",
            test_patch="",
            FAIL_TO_PASS=["none"],
            PASS_TO_PASS=[],
            install_config=install,
            source=source,
        )
        spec = await prepare(draft.to_task(), provider, cache_dir=cache_dir)
        return cls(spec, provider, install, tuple(tests), seconds)

    async def run(
        self, *patches: str, files: Mapping[str, bytes] | None = None
    ) -> dict[str, TestStatus] | None:
        """Return ``{test id: status}`` with patches applied and files replaced.

        None if there is no report: the tests timed out, or pytest did not start.

        Raises:
            InvalidTask: a patch does not apply.
            SandboxError: the sandbox failed.
        """
        work = f"/tmp/trajgym-{secrets.token_hex(8)}"  # noqa: S108  # inside the sandbox
        async with await self.provider.start(self.spec) as sandbox:
            for path, content in (files or {}).items():
                await sandbox.write_file(f"{REPO}/{path}", content)
            if any(patches):
                await sandbox.run(git_setup(work), timeout=60.0, cwd="/")
            for patch in filter(str.strip, patches):
                await sandbox.write_file(f"{work}/patch", patch.encode())
                script = f"{git_env(work)}cd {REPO}\ngit apply --whitespace=nowarn {work}/patch"
                done = await sandbox.run(script, timeout=60.0, cwd="/")
                if not done.ok:
                    output = done.stderr[-300:].decode("utf-8", "replace")
                    raise InvalidTask(f"a patch does not apply to its own base: {output}")
            await sandbox.run(["mkdir", "-p", work], timeout=30.0, cwd="/")
            report = f"{work}/report.xml"
            names = " ".join(map(shlex.quote, self.tests))
            command = f"{self.install.test_cmd} {pytest_options(report)} -- {names}"
            done = await sandbox.run(command, timeout=self.seconds, cwd=REPO)
            if done.timed_out:
                return None
            try:
                report_bytes = await sandbox.read_file(report, limit=64 << 20)
                listing = await sandbox.run(f"find {names} -name '*.py' -print0", cwd=REPO)
                modules = listing.stdout.decode("utf-8", "replace").split("\0")
                return parse_junit(report_bytes, filter(None, modules))
            except (SandboxFileError, BadReport):
                return None

    async def stable(self, *patches: str, times: int = 3) -> set[str]:
        """Return the tests that pass in each of several runs."""
        found: set[str] | None = None
        for _ in range(times):
            now = passed_in(await self.run(*patches))
            found = now if found is None else found & now
        return found or set()


def passed_in(results: Mapping[str, TestStatus] | None) -> set[str]:
    """Return the tests that passed; one that fails as expected does not count."""
    return {test for test, status in (results or {}).items() if status == "passed"}
