"""`trajgym eval`: collect, then report and compare what was solved."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trajgym.cli._advice import advice_for
from trajgym.cli._collect import (
    COST_LIMIT,
    CollectOptions,
    checked_tasks,
    collect_with_progress,
    cost_meter,
)
from trajgym.cli._terminal import say
from trajgym.rollout.evaluation import EvalSummary, pass_at, pass_hat, summarize
from trajgym.rollout.mixture import read_tables
from trajgym.trajectory import InvalidInput, Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trajgym.rollout.evaluation import Difference, GroupSummary, Prices

__all__ = ["EvalOptions", "eval_jobs", "run_eval"]

_CAUSES = 8
"""How many causes of failure are printed; ``--json`` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of the report of ``trajgym eval``.

    Args:
        by: key of ``Task.data`` that groups the tasks.
        against: earlier evaluation to compare with.
        markdown: file for a report.
        as_json: print JSON instead of tables.
    """

    by: str | None = None
    against: Path | None = None
    markdown: Path | None = None
    as_json: bool = False


def eval_jobs(path: Path, options: CollectOptions) -> list[CollectOptions]:
    """Return one collection for each ``[[eval]]`` table of a TOML file.

    A table has ``env`` and ``tasks``, and may have ``name`` (of its run directory; by default the
    environment's id), ``samples``, ``turns`` and ``set`` (settings of the environment). Other
    values are taken from ``options``.

    Raises:
        InvalidInput: the file can't be read, a key is unknown or missing, or a name is used twice.
    """
    jobs = []
    for name, part in read_tables(path, "eval").parts.items():
        given = {field.name: part[field.name] for field in fields(options) if field.name in part}
        given["config"] = part.get("set", {})
        jobs.append(replace(options, **given, out=options.out / name))
    return jobs


def run_eval(jobs: Sequence[CollectOptions], options: EvalOptions) -> int:
    """Collect the sessions that are missing, report, and return the exit status.

    Returns:
        0, 1 if an environment has no scored attempt, or 3 if the cost limit ended the evaluation.
    """
    console = Console(stderr=options.as_json)
    meter = cost_meter(jobs[0])
    prices = meter.prices
    before = None if options.against is None else _load(options.against, options.by, prices)
    causes: Counter[str] = Counter()
    for job, tasks in [(job, checked_tasks(job)) for job in jobs]:
        if meter.stopped:
            break
        causes += collect_with_progress(console, job, tasks, meter).causes
    begun = [job for job in jobs if any(job.out.glob("*.sqlite"))]
    with ExitStack() as stack:
        runs = [stack.enter_context(Run(job.out)) for job in begun]
        summary = summarize(runs, by=options.by, prices=prices)
    differences = {} if before is None else summary.against(before)
    if options.markdown is not None:
        _write(options.markdown, markdown(summary, differences, prices))
    if options.as_json:
        document = summary.to_json()
        if before is not None:
            document["against"] = [
                {"env": env, "group": group, **found._asdict()}
                for (env, group), found in differences.items()
            ]
        print(json.dumps(document, indent=2))
    else:
        _print(console, summary, differences, prices)
    for line in advice_for(cause for cause, _ in causes.most_common()):
        say(line, error=True)
    if meter.stopped:
        say(f"Stopped: {meter.stopped}. Raise --max-cost to continue.", error=True)
        return COST_LIMIT
    whole = [group for group in summary.groups if group.group == "all"]
    return 0 if whole and all(group.solved is not None for group in whole) else 1


def _load(path: Path, by: str | None, prices: Prices | None) -> EvalSummary:
    """Read an earlier evaluation: a run, or a directory of runs."""
    folders = [path, *sorted(p for p in path.iterdir() if p.is_dir())] if path.is_dir() else [path]
    with ExitStack() as stack:
        runs = [
            stack.enter_context(Run(folder)) for folder in folders if any(folder.glob("*.sqlite"))
        ]
        if not runs:
            raise InvalidInput(f"{path}: no run to compare with")
        return summarize(runs, by=by, prices=prices)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} can't be written: {error}") from error


def _rows(
    summary: EvalSummary, differences: dict[tuple[str, str], Difference]
) -> tuple[list[str], list[list[str]]]:
    """Return the main table: a header and a row for each environment and group."""
    ks = max((group.ks for group in summary.groups), key=len, default=[])
    header = ["environment", "tasks", "attempts", "solved (95%)"]
    header += [f"pass@{k}" for k in ks if k > 1] + [f"pass^{k}" for k in ks if k > 1]
    header += ["truncated", "failed", "turns", "tokens", "seconds"]
    priced = any(group.cost is not None for group in summary.groups)
    header += [f"cost {summary.currency}"] if priced else []
    header += ["change (95%)"] if differences else []
    rows = []
    for group in summary.groups:
        name = group.env if group.group == "all" else f"  {group.group}"
        row = [name, str(len(group.tasks)), str(sum(c.n for c in group.counts)), _solved(group)]
        row += [_share(pass_at(k, group.counts)) for k in ks if k > 1]
        row += [_share(pass_hat(k, group.counts)) for k in ks if k > 1]
        row += [str(group.truncated.total()), str(group.failures.total()), _mean(group.turns)]
        row += [f"{group.prompt_tokens + group.completion_tokens:,}", _mean(group.seconds)]
        if priced:
            row.append("-" if group.cost is None else f"{group.cost:.2f}")
        if differences:
            row.append(_change(differences.get((group.env, group.group))))
        rows.append(row)
    return header, rows


def _solved(group: GroupSummary) -> str:
    found = group.solved
    if found is None:
        return "-"
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f}" if values else "-"


def _change(found: Difference | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value:+.1%} ({found.tasks} task)"
    return f"{found.value:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"


def _notes(summary: EvalSummary, prices: Prices | None = None) -> list[str]:
    """Return the lines below the table: truncations, simulated users, failures, prices."""
    lines = []
    for group in summary.groups:
        if group.group != "all":
            continue
        if group.truncated:
            budgets = ", ".join(f"{n} {name}" for name, n in group.truncated.most_common())
            lines.append(f"{group.env}: truncated by {budgets}")
        if group.user_tokens:
            cost = "" if group.user_cost is None else f", {group.user_cost:.2f} {summary.currency}"
            lines.append(f"{group.env}: simulated users, {group.user_tokens:,} tokens{cost}")
        causes = group.failures.most_common()
        lines += [f"{group.env}: {n} x {cause}" for cause, n in causes[:_CAUSES]]
        if len(causes) > _CAUSES:
            lines.append(f"{group.env}: {len(causes) - _CAUSES} more causes; see --json")
        if prices is not None and group.unpriced:
            lines.append(f"{group.env}: {group.unpriced} turns have no known price or usage")
    return lines


def markdown(
    summary: EvalSummary,
    differences: dict[tuple[str, str], Difference],
    prices: Prices | None = None,
) -> str:
    """Return the evaluation as a Markdown table with notes."""
    header, rows = _rows(summary, differences)
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    lines += ["", *(f"- {note}" for note in _notes(summary, prices))]
    return "\n".join(lines).rstrip() + "\n"


def _print(
    console: Console,
    summary: EvalSummary,
    differences: dict[tuple[str, str], Difference],
    prices: Prices | None,
) -> None:
    lines = _rows(summary, differences)
    table = [lines[0], *lines[1]]
    if not console.is_terminal:
        for row in table:
            print("\t".join(cell.strip() for cell in row))
    else:
        for part in _fitting(table, console.width):
            console.print(part)
    for note in _notes(summary, prices):
        say(note)


def _fitting(rows: list[list[str]], width: int) -> Iterator[Table]:
    """Yield the table if it fits; else transpose it and split it into parts that fit."""
    if _width(rows) <= width:
        yield _table(rows)
        return
    columns = [list(column) for column in zip(*rows, strict=True)]
    names, groups = [column[0] for column in columns], rows[1:]
    part: list[list[str]] = []
    for group in groups:
        if part and _width(list(map(list, zip(names, *part, group, strict=True)))) > width:
            yield _table(list(map(list, zip(names, *part, strict=True))))
            part = []
        part.append(group)
    yield _table(list(map(list, zip(names, *part, strict=True))))


def _width(rows: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))


def _table(rows: list[list[str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(rows[0]):
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table
