"""Computes an outcome from the results of a test run.

A record without a log parser is graded more strictly than by SWE-bench's harness: F2P tests must
pass, P2P tests pass or fail as expected. With a log parser the rules are those of the ``swebench``
package: a test that fails as expected has passed, a skipped P2P test counts as passed, and where
``eval_type`` is ``fail_only`` a missing test has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._junit import reported_id
from trajgym.envs.swe._logs import R2E, log_status, r2e_id
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.swe._junit import TestStatus
    from trajgym.envs.swe._record import SweRecord
    from trajgym.envs.swe._testrun import SuiteRun

__all__ = ["Graded", "merged", "outcome_of", "passing", "status_of", "wanted"]

_SHOWN = 20


class Graded(NamedTuple):
    """A test run of a change, the parts that were left out, and attempts at tampering.

    Attributes:
        run: the results.
        left_out: paths that were not used, with the reason.
        tried: attempts at tampering that had no effect.
        twins: findings of the run of the tests' twins; empty if there was none.
    """

    run: SuiteRun
    left_out: dict[str, str]
    tried: tuple[str, ...]
    twins: Mapping[str, Any] = {}


def wanted(record: SweRecord) -> list[str]:
    """Return the ids of all tests that the record lists."""
    return [*record.FAIL_TO_PASS, *record.PASS_TO_PASS]


def status_of(record: SweRecord, test: str, results: Mapping[str, TestStatus]) -> TestStatus | None:
    """Return the status of a listed test, None if it is missing."""
    if record.install.log_parser is None:
        return results.get(reported_id(test))
    return log_status(test, results)


def passing(record: SweRecord, test: str, results: Mapping[str, TestStatus]) -> bool:
    """Return True if a listed test counts as passed."""
    must_pass = test in record.FAIL_TO_PASS
    status = status_of(record, test, results)
    if record.install.log_parser is None:
        return status == "passed" or (status == "xfailed" and not must_pass)
    if (record.model_extra or {}).get("eval_type") == "fail_only":
        return status != "failed"
    return status in {"passed", "xfailed"} or (status == "skipped" and not must_pass)


def merged(first: Graded, again: Graded) -> Graded:
    """Return a run merged with a repetition of its failed tests: passing once is enough."""
    kept = {test for test, status in first.run.results.items() if status == "passed"}
    results = {
        **first.run.results,
        **{test: status for test, status in again.run.results.items() if test not in kept},
    }
    return again._replace(run=again.run._replace(results=results))


def outcome_of(record: SweRecord, graded: Graded, patch_bytes: int, retried: int = 0) -> Outcome:
    """Return the outcome: 1.0 or 0.0, with partial scores and findings in the details."""
    run, left_out = graded.run, graded.left_out
    good = {test for test in wanted(record) if passing(record, test, run.results)}
    f2p = sum(test in good for test in record.FAIL_TO_PASS)
    p2p = sum(test in good for test in record.PASS_TO_PASS)
    failing = [test for test in wanted(record) if test not in good]
    failing += _unexpected(record, run.results)
    passed = not failing and not run.problem and not run.tampering
    details: dict[str, Any] = {
        **_share("f2p", f2p, len(record.FAIL_TO_PASS)),
        **_share("p2p", p2p, len(record.PASS_TO_PASS)),
        "failing": failing[:_SHOWN],
        "failing_total": len(failing),
        "left_out": dict(list(left_out.items())[:_SHOWN]),
        "left_out_total": len(left_out),
        "tampered": bool(run.tampering or graded.tried),
        "tampering": list(run.tampering),
        "tried": list(graded.tried[:_SHOWN]),
        "twins": dict(graded.twins),
        "retried": retried,
        "problem": run.problem,
        "patch_bytes": patch_bytes,
    }
    return Outcome(score=float(passed), passed=passed, details=details)


def _unexpected(record: SweRecord, results: Mapping[str, TestStatus]) -> list[str]:
    """Return the differences from the complete result that R2E-Gym's records expect.

    There must be as many tests as expected, each with the expected status.
    """
    expected = (record.model_extra or {}).get("expected_results") or {}
    if record.install.log_parser != R2E or not expected:
        return []
    wanted_status = {r2e_id(str(test)): str(status).lower() for test, status in expected.items()}
    listed = set(record.FAIL_TO_PASS)
    return sorted(
        test
        for test in {*wanted_status, *results} - listed - {""}
        if wanted_status.get(test) != results.get(test)
    )


def _share(name: str, count: int, total: int) -> dict[str, float]:
    share = count / total if total else 1.0
    return {f"{name}_passed": count, f"{name}_total": total, name: share}
