"""Checks that a task is sound: the gold patch always solves it, and the empty one does not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs import EnvironmentFault
from trajgym.envs.sandbox import SandboxError
from trajgym.envs.swe._errors import InvalidTask, SourceUnavailable
from trajgym.envs.swe._grade import grade
from trajgym.envs.swe._images import prepare
from trajgym.envs.swe._record import SweRecord
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.trajectory import Outcome, Task

__all__ = ["Validation", "validate_task"]


class Validation(NamedTuple):
    """The result of validation; the task is sound if there are no problems."""

    instance_id: str
    problems: tuple[str, ...]
    runs: int
    seconds: float

    @property
    def sound(self) -> bool:
        """True if the task can be trained on here."""
        return not self.problems


async def validate_task(
    task: Task,
    provider: SandboxProvider,
    *,
    repeats: int = 3,
    test_seconds: float = 300.0,
    cache_dir: Path | None = None,
) -> Validation:
    """Grade the gold patch several times and the empty patch once.

    Args:
        task: a SWE task.
        provider: where to run.
        repeats: number of runs in which the gold patch must solve it.
        test_seconds: limit of one test run.
        cache_dir: instead of the user's cache.

    Sound means: gold passes every listed test each time; the empty patch fails every FAIL_TO_PASS
    test and passes every PASS_TO_PASS test; no part of gold is left out. A failure of the sandbox
    or the sources is reported as a problem of the task.

    Raises:
        InvalidInput: ``repeats`` is not positive.
    """
    if repeats < 1:
        raise InvalidInput(f"repeats must be at least 1, not {repeats}")
    begun = time.monotonic()
    problems: list[str] = []
    runs = 0
    try:
        gold = SweRecord.of(task).patch.encode()
        spec = await prepare(task, provider, cache_dir=cache_dir)
        for patch in [b"", *[gold] * repeats]:
            # Twins are compared with the gold patch: they can't show anything about it.
            outcome = await grade(
                task, patch, provider, spec=spec, test_seconds=test_seconds, twins=False
            )
            runs += 1
            problems += _of_gold(outcome) if patch else _of_empty(outcome)
            if problems:
                break
    except (SandboxError, EnvironmentFault, SourceUnavailable, InvalidTask) as error:
        problems.append(f"can't be graded here: {error}")
    return Validation(task.id, tuple(problems), runs, round(time.monotonic() - begun, 2))


def _of_gold(outcome: Outcome) -> list[str]:
    details = outcome.details
    found = []
    if details["left_out"]:
        found.append(f"gold changes paths that don't count: {', '.join(details['left_out'])}")
    if details["tampered"]:
        found.append(f"gold looks like tampering: {details['tampering'] or details['tried']}")
    if not outcome.passed:
        why = details["problem"] or f"{details['failing_total']} fail: {details['failing'][:3]}"
        found.append(f"gold does not solve it: {why}")
    return found


def _of_empty(outcome: Outcome) -> list[str]:
    details = outcome.details
    found = []
    if details["problem"]:
        found.append(f"the tests do not run on the base: {details['problem']}")
    elif details["f2p_passed"]:
        found.append(f"{details['f2p_passed']} FAIL_TO_PASS tests pass without a change")
    elif details["p2p"] < 1.0:
        broken = details["p2p_total"] - details["p2p_passed"]
        found.append(f"{broken} PASS_TO_PASS tests fail without a change")
    return found
