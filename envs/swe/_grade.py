"""Grading: the agent's change on a clean copy, with the task's own tests, in a fresh sandbox.

Several layers, each against attacks that the others don't stop: only regular source files of the
change are used (:mod:`trajgym.envs.swe._paths`); tests come from the base and the task; results
come from a report with exact test ids; a test with a random name that must fail detects rewritten
outcomes; pytest's exit status must agree (:mod:`trajgym.envs.swe._testrun`). When all tests pass,
they run once more as twins that must fail (:mod:`trajgym.envs.swe._twins`).
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxFileError
from trajgym.envs.swe._grading import Grading
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._outcome import Graded, merged, outcome_of, passing, status_of, wanted
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._testrun import SuiteRun, runs_pytest

if TYPE_CHECKING:
    from trajgym.envs.sandbox import Sandbox, SandboxProvider, SandboxSpec
    from trajgym.trajectory import Outcome, Task

__all__ = ["grade", "ungraded"]

_NAMED = 5
_TWIN_RUNS = 2  # a twin run without results is repeated once


async def grade(
    task: Task,
    patch: bytes,
    provider: SandboxProvider,
    *,
    spec: SandboxSpec | None = None,
    test_seconds: float = 300.0,
    twins: bool = True,
) -> Outcome:
    """Return whether a change solves a task.

    Args:
        task: a SWE task.
        patch: the change to the base, as `git diff --binary` writes it; empty for none.
        provider: where to run.
        spec: the result of :func:`prepare`, if it was called already.
        test_seconds: limit for each test run.
        twins: when all tests pass, run them once more as twins that must fail, in another fresh
            sandbox; one that passes is tampering. Without twins, code that rewrites pytest's
            reports by the names of tests is graded as solved.

    The score is 1.0 if every FAIL_TO_PASS test passes and every PASS_TO_PASS test passes or fails
    as expected (xfail); a test that is skipped or missing has not passed. Records with a log parser
    follow the rules of the ``swebench`` package instead, see :mod:`trajgym.envs.swe._outcome`.
    ``details`` holds ``f2p_passed``, ``f2p_total``, ``f2p`` (share) and the same for ``p2p``,
    ``failing`` (at most 20 ids), ``left_out`` (paths not used, with the reason), ``tampered``,
    ``tampering`` (evidence that outcomes were rewritten; the score is 0), ``tried`` (attempts
    that were reverted and had no effect; the score is unchanged), ``twins`` (``run``: tests whose
    twin ran, ``weak``: twins that pass with the gold patch too and show nothing, ``missing``:
    passing tests that have no twin; or ``skipped``: why there was no such run), ``retried`` and
    ``problem``.

    Raises:
        InvalidTask: the task is not a SWE task.
        SandboxError: the sandbox failed; the change was not graded.
        EnvironmentFault: the task itself can't be graded: its own tests do not apply or run.
    """
    record = SweRecord.of(task)
    if spec is None:
        spec = await prepare(task, provider)
    grader = _Grader(record, provider, spec, test_seconds)
    try:
        return await grader.outcome(patch, twins=twins)
    except (EnvironmentFault, SandboxFileError) as fault:
        if not patch.strip():
            raise
        # A change that breaks its own grading must get a score of 0, not an unscored failure.
        await grader.outcome(b"", twins=False)
        return ungraded(task, f"the change breaks its grading: {fault}")


def ungraded(task: Task, problem: str) -> Outcome:
    """Return the outcome of an attempt without a change that could be graded."""
    return outcome_of(SweRecord.of(task), Graded(SuiteRun({}, problem), {}, ()), 0)


class _Grader(NamedTuple):
    record: SweRecord
    provider: SandboxProvider
    spec: SandboxSpec
    test_seconds: float

    async def outcome(self, patch: bytes, *, twins: bool) -> Outcome:
        graded = Graded(SuiteRun({}), {}, ())
        tests = wanted(self.record)
        for again in range(self.record.install.retries + 1):
            async with await self.provider.start(self.spec) as sandbox:
                grading = Grading(self.record, sandbox, self.test_seconds, self._fresh)
                found = await grading.run(patch, tests)
            graded = merged(graded, found) if again else found
            tests = [t for t in tests if not passing(self.record, t, graded.run.results)]
            if not tests or graded.run.problem or graded.run.tampering:
                break
        if twins and not (tests or graded.run.problem or graded.run.tampering):
            graded = await self._with_twins(patch, graded)
        return outcome_of(self.record, graded, len(patch), again)

    async def _fresh(self) -> Sandbox:
        return await self.provider.start(self.spec)

    async def _with_twins(self, patch: bytes, graded: Graded) -> Graded:
        """Return the graded run with the findings of the run of the tests' twins."""
        if not runs_pytest(self.record.install):
            return graded._replace(twins={"skipped": "the tests are not run by pytest"})
        results = graded.run.results
        passed = [t for t in wanted(self.record) if status_of(self.record, t, results) == "passed"]
        seed = secrets.randbits(64)
        found = await self._twin_run(patch, passed, seed)
        weak: frozenset[str] = frozenset()
        if any((found.passed, found.tampering, found.problem)) and self.record.patch.strip():
            # The gold patch shows which twins can't fail, and which failures the twins cause.
            gold = await self._twin_run(self.record.patch.encode(), passed, seed)
            weak = gold.passed
            found = found._replace(passed=found.passed - weak)
            if gold.tampering or gold.problem:
                found = found._replace(tampering=(), problem="")
        twins: dict[str, Any] = {
            "run": found.twinned - len(weak),
            "weak": len(weak),
            "missing": len(passed) - found.twinned,
        }
        said = [f"passes though its twin must fail: {test}" for test in sorted(found.passed)]
        run = graded.run._replace(
            tampering=(*said[:_NAMED], *found.tampering), problem=found.problem
        )
        return graded._replace(run=run, twins=twins)

    async def _twin_run(self, patch: bytes, tests: list[str], seed: int) -> _Twins:
        """Run the twins of tests; the same seed makes the same twins."""
        for _ in range(_TWIN_RUNS):
            async with await self.provider.start(self.spec) as sandbox:
                chance = random.Random(seed)  # noqa: S311  # repeatable, from a secret seed
                grading = Grading(self.record, sandbox, self.test_seconds, self._fresh, chance)
                run = (await grading.run(patch, tests)).run
            if not run.problem:
                break
        twinned = [test for test in tests if test.partition("[")[0] in grading.twinned]
        passed = [t for t in twinned if status_of(self.record, t, run.results) == "passed"]
        problem = run.problem and f"the twins of the tests gave no results: {run.problem}"
        return _Twins(len(twinned), frozenset(passed), run.tampering, problem)


class _Twins(NamedTuple):
    """A run of twins: how many, which of them passed, and what was wrong with the run."""

    twinned: int
    passed: frozenset[str]
    tampering: tuple[str, ...]
    problem: str
