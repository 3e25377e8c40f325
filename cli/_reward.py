"""`trajgym reward` and `trajgym export`."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trajgym.adapters import export
from trajgym.cli._explain import draw, print_explanation, span_values
from trajgym.cli._show import find_session
from trajgym.rewards import Advantages, Deriver, Rewards, get_deriver
from trajgym.trajectory import Run, Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trajgym.adapters import ExportReport

__all__ = ["derive", "export_run", "run_export", "run_reward"]


def derive(run: Run, deriver: Deriver) -> Rewards | Advantages:
    """Return what a deriver gives for the sealed groups of a run."""
    groups = [group for group in run.groups() if group.sealed]
    members = {member.session for group in groups for member in group.members}
    sessions = (tree for tree in run.sessions() if tree.record.id in members)
    return deriver.derive(deriver.table(groups, sessions))


def run_reward(
    path: Path,
    name: str,
    settings: dict[str, Any],
    *,
    explained: str | None = None,
    plot: Path | None = None,
) -> None:
    """Derive, keep the values in the run, and say what came out.

    Args:
        path: of the run.
        name: of the deriver.
        settings: of the deriver.
        explained: a session, or the start of its id, whose turns' terms are printed.
        plot: where a picture goes: of the explained session's tree, else of the run's only group.

    Raises:
        InvalidInput: there is no such session, or nothing or too much to draw.
    """
    console = Console()
    deriver = get_deriver(name, **settings)
    with Run(path) as run:
        session = None if explained is None else find_session(run, explained)
        values = derive(run, deriver)
        tree = None if session is None else run.session(session)
    if tree is not None:
        print_explanation(console, deriver, values, tree)
    if plot is not None:
        console.print(draw(values, session, plot), highlight=False, soft_wrap=True)
    _keep(path, name, values)
    total, n, m = float(values.values.sum()), len(values.table), len(values.table.sessions)
    nonzero = int((values.values != 0).sum())
    spans = "" if values.spans is None else f", {int((values.spans != 0).sum())} spans"
    console.print(
        f"{type(values).__name__.lower()} of {name}: {n} turns of {m} sessions, {nonzero} not "
        f"zero{spans}, sum {total:g}. Kept in {path} under {name!r}.",
        highlight=False,
        soft_wrap=True,
    )


def _keep(path: Path, name: str, values: Rewards | Advantages) -> None:
    with Store(path) as store:
        for session in values.table.sessions:
            body = {
                "kind": type(values).__name__.lower(),
                "deriver": values.stamp.deriver,
                "settings": values.stamp.settings,
                "values": values.of(session).tolist(),
                "spans": span_values(values, session),
            }
            store.put_derived(session, name, json.dumps(body).encode())


def export_run(
    run: Run,
    to: str,
    out: Path,
    derivers: Sequence[Deriver],
    options: dict[str, Any],
) -> ExportReport:
    """Export a run with the values of some derivers."""
    values = [derive(run, deriver) for deriver in derivers]
    return export(to, run.sessions(), run.groups(), out, values=values, blobs=run.blob, **options)


def run_export(
    path: Path,
    to: str,
    out: Path,
    with_names: Sequence[str],
    options: dict[str, Any],
) -> None:
    """Export, and say what was written and what was left out, by reason."""
    console = Console()
    names = list(with_names) or list(_DEFAULT_VALUES.get(to, ()))
    with Run(path) as run:
        report = export_run(run, to, out, [get_deriver(name) for name in names], options)
    synthetic = f" ({report.synthetic} synthetic)" if report.synthetic else ""
    values = f" with {', '.join(names)}" if names else ""
    console.print(
        f"{to}{values}: {report.written} records{synthetic}", highlight=False, soft_wrap=True
    )
    for file in report.files:
        console.print(f"  {file}", highlight=False, soft_wrap=True)
    for reason, n in Counter(dropped.reason for dropped in report.dropped).most_common():
        console.print(f"  left out {n}: {reason}", style="yellow", highlight=False, soft_wrap=True)


_DEFAULT_VALUES = {
    "rows": ("outcome", "grpo"),
    "trl-grpo": ("grpo",),
    "verl": ("outcome",),
    "areal": ("outcome",),
}
"""Which values an export carries if none are named."""
