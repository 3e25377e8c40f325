"""`trajgym dataset redact`, `trajgym dataset review`, and ``--redact`` of exports."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trajgym.cli._terminal import print_json, print_table, say
from trajgym.trajectory import InvalidInput
from trajgym.trajectory.datasets import redact_run, review_run
from trajgym.trajectory.redaction import Redactor, read_decisions, write_decisions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trajgym.trajectory.redaction import RedactionReport

__all__ = ["redacted", "run_redact", "run_review"]


def run_redact(
    path: Path, out: Path, *, decisions: Path | None, report: Path | None, as_json: bool
) -> None:
    """Make a redacted run, and print what was replaced, by rule.

    Args:
        path: of the run.
        out: directory of the new run.
        decisions: file of :func:`run_review`.
        report: file for all findings.
        as_json: print the counts as JSON.
    """
    redactor = _redactor(decisions)
    made = redact_run(path, out, redactor)
    if report is not None:
        found = [asdict(one) for one in redactor.report.findings.values()]
        text = json.dumps({**_counts(redactor.report), "findings": found}, indent=1)
        report.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print_json({"path": str(made.path), **_counts(redactor.report)})
        return
    say(f"{made.path}: {made.sessions} sessions, {made.groups} groups, {made.tasks} tasks")
    _print(redactor.report)


def run_review(path: Path, decisions: Path, *, as_json: bool) -> None:
    """Write what would be replaced to a decisions file, and print it.

    Args:
        path: of the run.
        decisions: the file; its key and decisions are kept if it exists.
        as_json: print the findings as JSON.
    """
    redactor = _redactor(decisions if decisions.exists() else None)
    review_run(path, redactor)
    write_decisions(decisions, redactor)
    findings = list(redactor.report.findings.values())
    if as_json:
        print_json([asdict(one) for one in findings])
        return
    rows = [
        [
            "keep" if one.kept else "redact",
            one.placeholder,
            str(one.count),
            one.places[0] if one.places else "",
            one.context,
        ]
        for one in findings
    ]
    print_table(["decision", "placeholder", "places", "first place", "context"], rows)
    say(f'\n{decisions}: {len(findings)} findings; set a decision to "keep" to leave its value')


@contextmanager
def redacted(
    path: Path, out: Path, *, wanted: bool, decisions: Path | None
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the run to export and, if it is redacted, what was replaced.

    The redacted run is made beside ``out`` and removed afterwards.

    Args:
        path: of the run.
        out: directory of the export.
        wanted: whether the run is redacted.
        decisions: file of :func:`run_review`.

    Raises:
        InvalidInput: decisions are given without ``wanted``.
    """
    if not wanted:
        if decisions is not None:
            raise InvalidInput("--decisions has no effect without --redact")
        yield path, None
        return
    redactor = _redactor(decisions)
    part = out.parent / f".{out.name}.redacted"
    shutil.rmtree(part, ignore_errors=True)
    try:
        redact_run(path, part, redactor)
        _print(redactor.report, error=True)
        yield part, _counts(redactor.report)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _redactor(decisions: Path | None) -> Redactor:
    if decisions is None:
        return Redactor()
    found = read_decisions(decisions)
    return Redactor(key=found.key, decisions=found.decisions)


def _counts(report: RedactionReport) -> dict[str, Any]:
    return {
        "replaced": dict(report.rules.most_common()),
        "kept": dict(report.kept.most_common()),
        "values": len(report.findings),
        "unlisted": report.unlisted,
        "sessions": report.sessions,
        "turns_without_ids": report.turns_without_ids,
        "sessions_without_ids": report.sessions_without_ids,
        "unexamined": dict(report.unexamined),
    }


def _print(report: RedactionReport, *, error: bool = False) -> None:
    kinds = ", ".join(f"{n:,} {rule}" for rule, n in report.rules.most_common()) or "nothing"
    say(f"  replaced in {report.sessions:,} sessions: {kinds}", error=error)
    if report.kept:
        say(f"  kept by decision: {report.kept.total():,} places", error=error)
    if lost := report.turns_without_ids:
        sessions = report.sessions_without_ids
        text = f"  {lost:,} turns of {sessions:,} sessions lost their token ids"
        say(text, style="yellow", error=error)
    for media_type, n in report.unexamined.most_common():
        say(f"  not searched: {n:,} stored {media_type}", style="yellow", error=error)
