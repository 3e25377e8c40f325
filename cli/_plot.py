"""`trajgym plot`: plots of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trajgym.cli._reward import derive
from trajgym.cli._terminal import print_json, say
from trajgym.rewards import get_deriver
from trajgym.rollout.plots import draw_plots, plot_data
from trajgym.trajectory import Run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trajgym.cli._missing import MissingRule

__all__ = ["run_plot"]


def run_plot(
    path: Path,
    *,
    out: Path | None,
    form: Literal["png", "svg"],
    derivers: Sequence[str],
    outcomes: str | None = None,
    missing_signals: MissingRule = "error",
    as_json: bool = False,
) -> None:
    """Draw the plots of a run, or print their data.

    Args:
        path: of the run.
        out: directory for the files; ``plots`` in the run's directory if None.
        form: of the files.
        derivers: whose values are shown beside those stored in the run.
        outcomes: name of the outcomes that are used; the recorded ones if None.
        missing_signals: what happens if sessions lack signals that a deriver reads.
        as_json: print the data of the plots, and draw nothing.

    Raises:
        MissingExtra: matplotlib is not installed.
        MissingSignals: sessions lack signals, and ``missing_signals`` is ``error``.
    """
    with Run(path, outcomes=outcomes) as run:
        values = derive(run, *map(get_deriver, derivers), missing_signals=missing_signals)
        plots = plot_data(run, values=values)
    if as_json:
        print_json([plot.to_json() for plot in plots])
        return
    folder = out or (path if path.is_dir() else path.parent) / "plots"
    for file in draw_plots(plots, folder, format=form):
        say(str(file))
    for plot in plots:
        if plot.empty:
            say(f"left out {plot.name}: {plot.note}", style="yellow")
