"""From the results of a test run to an outcome.

A record without a log parser asks for more than the field's harness: F2P tests must pass, P2P tests
pass or fail as expected. With a log parser the rules are those of the ``swebench`` package: a test
that fails as expected has passed, a P2P test that is skipped is kept, and where ``eval_type`` is
``fail_only`` a test that is missing has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.swe._junit import reported_id
from trajgym.envs.swe._logs import log_status
from trajgym.trajectory import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trajgym.envs.swe._junit import TestStatus
    from trajgym.envs.swe._record import SweRecord
    from trajgym.envs.swe._testrun import SuiteRun

__all__ = ["Graded", "merged", "outcome_of", "passing", "wanted"]

_SHOWN = 20


class Graded(NamedTuple):
    """A test run of a change, what of the change was left out, and what it attempted."""

    run: SuiteRun
    left_out: dict[str, str]
    tried: tuple[str, ...]


def wanted(record: SweRecord) -> list[str]:
    """Return the ids of all tests that the record lists."""
    return [*record.FAIL_TO_PASS, *record.PASS_TO_PASS]


def passing(record: SweRecord, test: str, results: Mapping[str, TestStatus]) -> bool:
    """Return True if a listed test counts as passed."""
    must_pass = test in record.FAIL_TO_PASS
    if record.install.log_parser is None:
        status = results.get(reported_id(test))
        return status == "passed" or (status == "xfailed" and not must_pass)
    status = log_status(test, results)
    if (record.model_extra or {}).get("eval_type") == "fail_only":
        return status != "failed"
    return status in {"passed", "xfailed"} or (status == "skipped" and not must_pass)


def merged(first: Graded, again: Graded) -> Graded:
    """Return a run with the tests that were run again: passing once is enough."""
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
        "retried": retried,
        "problem": run.problem,
        "patch_bytes": patch_bytes,
    }
    return Outcome(score=float(passed), passed=passed, details=details)


def _share(name: str, count: int, total: int) -> dict[str, float]:
    share = count / total if total else 1.0
    return {f"{name}_passed": count, f"{name}_total": total, name: share}
