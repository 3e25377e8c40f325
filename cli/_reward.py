"""`trajgym reward` and `trajgym export`."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console

from trajgym.adapters import export
from trajgym.cli._explain import draw_only_group, draw_session, print_explanation
from trajgym.cli._missing import MissingRule, signal_source
from trajgym.cli._show import find_session
from trajgym.cli._terminal import print_json, say
from trajgym.rewards import (
    Deriver,
    MissingSignals,
    RunValues,
    derive_run,
    derive_scope,
    get_deriver,
)
from trajgym.trajectory import InvalidInput, Run, Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.adapters import ExportReport

__all__ = ["derive", "export_run", "lost_lines", "run_export", "run_reward"]

_REASONS = 10
"""Most lines of reasons that are printed."""
_WRITES = 500
"""Sessions whose values wait to be written at most."""


def derive(run: Run, *derivers: Deriver, missing_signals: MissingRule = "error") -> list[RunValues]:
    """Return the values of derivers for the sealed groups of a run.

    Args:
        run: open run.
        *derivers: whose values are returned.
        missing_signals: ``zero`` lets signals that sessions lack count as 0, with a warning.

    Raises:
        MissingSignals: sessions lack signals that a deriver reads, and the rule is ``error``.
    """
    try:
        found = derive_run(run, *derivers, missing_signals=missing_signals)
    except MissingSignals as error:
        raise MissingSignals(
            f"{error}. {signal_source(error.lacking)} --missing-signals zero lets them count as 0",
            error.lacking,
        ) from None
    for values in found:
        if values.lacking:
            say(f"warning: {values.complaint}; they count as 0", style="yellow", error=True)
    return found


def run_reward(
    path: Path,
    name: str,
    settings: dict[str, Any],
    *,
    explained: str | None = None,
    plot: Path | None = None,
    outcomes: str | None = None,
    missing_signals: MissingRule = "error",
    as_json: bool = False,
) -> None:
    """Derive values, store them in the run, and print counts.

    Args:
        path: of the run.
        name: of the deriver.
        settings: of the deriver.
        explained: id, or prefix of the id, of the session whose terms are printed.
        plot: file for a plot of the explained session's tree, else of the run's only group.
        outcomes: name of the outcomes that are used; the recorded ones if None.
        missing_signals: what happens if sessions lack signals; see `derive`.
        as_json: print the counts as JSON.

    Raises:
        MissingSignals: sessions lack signals, and ``missing_signals`` is ``error``.
        InvalidInput: there is no such session, or not exactly one thing to plot.
    """
    deriver = get_deriver(name, **settings)
    with Run(path, outcomes=outcomes) as run:
        session = None if explained is None else find_session(run, explained)
        (values,) = derive(run, deriver, missing_signals=missing_signals)
        if session is not None:
            around = derive_scope(run, deriver, session)
            print_explanation(Console(), deriver, around, run.session(session))
            drawn = "" if plot is None else draw_session(around, session, plot)
        else:
            drawn = "" if plot is None else draw_only_group(run, deriver, plot)
        files = run.files
    with values:
        counts = _keep(files, name, values, outcomes)
    if as_json:
        print_json(counts)
        return
    if drawn:
        say(drawn)
    spans = "" if counts["nonzero_spans"] is None else f", {counts['nonzero_spans']} spans"
    say(
        f"{counts['kind']} of {name}: {counts['turns']} turns of {counts['sessions']} sessions, "
        f"{counts['nonzero']} not zero{spans}, sum {counts['sum']:g}. "
        f"Stored in {path} as {name!r}.",
    )
    if not counts["sessions"]:
        say(
            "warning: no counted session is in a sealed group; values are derived in groups",
            style="yellow",
            error=True,
        )


def _keep(
    files: Sequence[Path], name: str, values: RunValues, outcomes: str | None
) -> dict[str, Any]:
    """Store values in the files that have their sessions; return counts."""
    head = {
        "kind": values.kind.__name__.lower(),
        "deriver": values.stamp.deriver,
        "settings": values.stamp.settings,
    }
    turns = sessions = nonzero = 0
    spans: int | None = None
    total = 0.0
    for number, file in enumerate(files):
        with Store(file) as store, store.read() as part:
            for at, (session, found) in enumerate(values.sessions(), start=1):
                named = found.named_spans()
                if not number:
                    sessions += 1
                    turns += found.turns.size
                    nonzero += int(np.count_nonzero(found.turns))
                    total += float(found.turns.sum())
                    spans = spans if found.spans is None else (spans or 0) + len(named)
                if len(files) > 1 and part.locate(session) is None:
                    continue  # in another file of the run
                body = head | {"values": found.turns.tolist(), "spans": named}
                if outcomes is not None:
                    body["outcomes"] = outcomes
                ack = store.put_derived(session, name, json.dumps(body).encode())
                if at % _WRITES == 0:
                    ack.wait()  # else writes would pile up in memory
    return {
        "kind": head["kind"],
        "deriver": name,
        "settings": values.stamp.settings,
        "turns": turns,
        "sessions": sessions,
        "nonzero": nonzero,
        "nonzero_spans": spans,
        "sum": total,
    }


def export_run(
    run: Run,
    to: str,
    out: Path,
    derivers: Sequence[Deriver],
    options: dict[str, Any],
    *,
    missing_signals: MissingRule = "error",
) -> ExportReport:
    """Export a run with the values of some derivers.

    Raises:
        MissingSignals: sessions lack signals, and ``missing_signals`` is ``error``.
    """
    with ExitStack() as stack:
        values = derive(run, *derivers, missing_signals=missing_signals)
        for one in values:
            stack.enter_context(one)
        return export(
            to,
            run.sessions(),
            run.groups(),
            out,
            values=values,
            blobs=run.blob,
            task=run.task,
            **options,
        )


def run_export(
    path: Path,
    to: str,
    out: Path,
    with_names: Sequence[str],
    options: dict[str, Any],
    *,
    outcomes: str | None = None,
    missing_signals: MissingRule = "error",
    redaction: dict[str, Any] | None = None,
    as_json: bool = False,
) -> None:
    """Export, and print the counts of records written and of sessions left out, by reason.

    Values come from the derivers that ``trajgym reward`` stored in the run, with their settings;
    other derivers are applied with their defaults. They are derived from the outcomes that
    ``trajgym reward`` used, unless ``outcomes`` names others.

    Raises:
        InvalidInput: none is named, and the run has values of several that the export accepts; or
            the chosen ones were derived from different outcomes.
    """
    with Run(path) as run:
        chosen = _chosen(to, with_names, _kept(run))
    derivers = [one.deriver for one in chosen]
    if outcomes is None:
        outcomes = _outcomes_of(chosen)
    with Run(path, outcomes=outcomes) as run:
        report = export_run(run, to, out, derivers, options, missing_signals=missing_signals)
    reasons = Counter(dropped.reason for dropped in report.dropped)
    if as_json:
        print_json(
            {
                "export": to,
                "values": [deriver.stamp._asdict() for deriver in derivers],
                "written": report.written,
                "synthetic": report.synthetic,
                "files": [str(file) for file in report.files],
                "left_out": dict(reasons.most_common()),
                "lost": report.lost,
            }
            | ({} if redaction is None else {"redaction": redaction})
        )
        return
    synthetic = f" ({report.synthetic} synthetic)" if report.synthetic else ""
    values = f" with {', '.join(map(_described, derivers))}" if derivers else ""
    say(f"{to}{values}: {report.written} records{synthetic}")
    for file in report.files:
        say(f"  {file}")
    for line in _left_out(reasons):
        say(f"  {line}", style="yellow")
    for line in lost_lines(report.lost, "sessions"):
        say(f"  {line}", style="yellow")


def lost_lines(lost: Mapping[str, int], unit: str = "") -> list[str]:
    """Return lines that say what a foreign format did not keep."""
    if not lost:
        return []
    counts = [f"{what} ({count}{' ' * bool(unit)}{unit})" for what, count in lost.items()]
    return [f"lost: {', '.join(counts)}"]


def _left_out(reasons: Counter[str]) -> list[str]:
    counts = reasons.most_common()
    shown = counts if len(counts) <= _REASONS else counts[: _REASONS - 1]
    lines = [f"left out {n}: {reason}" for reason, n in shown]
    if others := counts[len(shown) :]:
        total = sum(n for _, n in others)
        lines.append(f"left out {total}: {len(others)} other reasons (--json prints all)")
    return lines


class _Kept(NamedTuple):
    """A deriver whose values `trajgym reward` stored, with its settings, and their kind."""

    deriver: Deriver
    kind: str
    outcomes: str | None = None
    """Name of the outcomes that they were derived from; None for the recorded ones."""


def _kept(run: Run) -> dict[str, _Kept]:
    """Return the derivers whose values the run holds, by name."""
    found: dict[str, _Kept] = {}
    for summary in run.summaries():
        for name, body in run.derived(summary.record.id).items():
            if name not in found:
                stored = json.loads(body)
                deriver = get_deriver(stored["deriver"], **stored["settings"])
                found[name] = _Kept(deriver, stored["kind"], stored.get("outcomes"))
        if found:
            break
    return found


def _chosen(to: str, names: Sequence[str], kept: dict[str, _Kept]) -> list[_Kept]:
    if names:
        return [kept[name] if name in kept else _Kept(get_deriver(name), "") for name in names]
    chosen: list[_Kept] = []
    for kinds, default in _VALUES.get(to, ()):
        fitting = [name for name, one in kept.items() if one.kind in kinds]
        if len(fitting) > 1:
            raise InvalidInput(
                f"the run has {' and '.join(kinds)} of {', '.join(fitting)}: choose with --with",
            )
        chosen.append(kept[fitting[0]] if fitting else _Kept(get_deriver(default), ""))
    return chosen


def _outcomes_of(chosen: Sequence[_Kept]) -> str | None:
    kept = {one.outcomes for one in chosen if one.kind}
    if len(kept) > 1:
        names = ", ".join(name or "recorded" for name in sorted(kept, key=str))
        raise InvalidInput(
            f"the kept values were derived from different outcomes ({names}): choose with "
            "--outcomes",
        )
    return next(iter(kept), None)


def _described(deriver: Deriver) -> str:
    defaults = type(deriver)().stamp.settings
    changed = {k: v for k, v in deriver.stamp.settings.items() if v != defaults.get(k)}
    settings = ", ".join(f"{key}={json.dumps(value)}" for key, value in changed.items())
    return f"{deriver.name} ({settings})" if settings else deriver.name


_VALUES: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "rows": ((("rewards",), "outcome"), (("advantages",), "grpo")),
    "trl-grpo": ((("advantages",), "grpo"),),
    "verl": ((("rewards",), "outcome"),),
    "areal": ((("rewards", "advantages"), "outcome"),),
}
"""The kinds of values that an export takes, and the default deriver of each."""
