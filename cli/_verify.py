"""`trajgym verify`: a run's actions, executed again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from trajgym.cli._terminal import print_json, say
from trajgym.rollout.verification import VerifyReport, verify_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trajgym.rollout.verification import Difference

__all__ = ["run_verify"]

_LISTED = 20
"""Differences that are printed; ``--json`` prints more."""


def run_verify(
    path: Path,
    *,
    share: float,
    seed: int,
    concurrency: int,
    deadline: float,
    ignore: Sequence[str],
    as_json: bool,
) -> int:
    """Verify a run, print what differs, and return the exit status: 1 if something does."""
    report = asyncio.run(
        verify_run(
            path,
            share=share,
            seed=seed,
            concurrency=concurrency,
            deadline=deadline,
            ignore=ignore,
        )
    )
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return int(bool(report.causes))


def _print(report: VerifyReport) -> None:
    say(
        f"repeated {report.attempts} attempts of {report.sessions} sessions: {report.equal} equal, "
        f"{report.attempts - report.equal} different; {report.turns} turns and {report.outcomes} "
        "outcomes compared"
    )
    for cause, n in report.causes.most_common():
        say(f"  {cause} differs in {n}" if cause in _COMPARED else f"  {cause}: {n}", style="red")
    for reason, n in report.partly.most_common():
        say(f"  compared in part {n}: {reason}", style="yellow")
    for reason, n in report.skipped.most_common():
        say(f"  not repeated {n}: {reason}", style="yellow")
    for difference in report.differences[:_LISTED]:
        for line in _lines(difference):
            say(line)
    if len(report.differences) > _LISTED:
        say(f"\n{len(report.differences) - _LISTED} more; --json prints them")


_COMPARED = {"opening", "observation", "reward", "end", "outcome"}


def _lines(difference: Difference) -> list[str]:
    place = difference.session
    if difference.attempt:
        place += f" /{difference.attempt}"
    if difference.turn is not None:
        place += f" turn {difference.turn}"
    return [
        f"\n{place}: {difference.cause}",
        f"  recorded: {' '.join(difference.recorded.split())}",
        f"  found:    {' '.join(difference.found.split())}",
    ]
