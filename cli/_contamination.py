"""`trajgym dataset contamination`: evaluation tasks in training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.cli._terminal import print_json, print_table, say
from trajgym.trajectory.datasets import decontaminate_run, find_contamination

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_contamination"]

_LISTED = 30
"""Overlaps that are printed; ``--json`` prints all."""


def run_contamination(
    train: Path,
    evaluation: Path,
    *,
    out: Path | None,
    ngram: int,
    overlap: float,
    as_json: bool,
) -> int:
    """Print what training data contains of an evaluation set.

    Args:
        train: run to train on.
        evaluation: run or file of tasks.
        out: directory of a new run without what was found.
        ngram: words per n-gram.
        overlap: least share of the n-grams of a part of a task.
        as_json: print JSON.

    Returns:
        The exit status: 1 if something was found and ``out`` is None.
    """
    report = find_contamination(train, evaluation, ngram=ngram, overlap=overlap)
    made = None if out is None else decontaminate_run(train, out, report)
    if as_json:
        new = {} if made is None else {"out": made._asdict() | {"path": str(made.path)}}
        print_json(report.to_json() | new)
        return int(made is None and bool(report.found))
    if report.overlaps:
        rows = [
            [
                one.task,
                one.kind,
                f"{one.share:.0%}",
                one.where,
                one.found_in if one.session is None else one.session,
                one.excerpt,
            ]
            for one in report.overlaps[:_LISTED]
        ]
        print_table(["task", "found as", "share", "part", "in", "words"], rows, right=["share"])
        if others := len(report.overlaps) - len(rows):
            say(f"{others} more; --json prints them")
        say()
    found = len(report.found)
    say(
        f"{found} of {report.tasks} evaluation tasks found in {report.train_tasks} training tasks "
        f"and {report.sessions} sessions ({len(report.found_in)} tasks, "
        f"{len(report.found_sessions)} sessions)"
    )
    if few := report.unindexed:
        say(f"  compared only as a whole, having fewer than {ngram} words of their own: {few}")
    if report.templates:
        say(f"  ignored as template: {report.templates} n-grams that many tasks share")
    if made is not None:
        say(f"{made.path}: {made.sessions} sessions; {made.left_out} left out")
    return int(made is None and bool(report.found))
