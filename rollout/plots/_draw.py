"""Plots as PNG or SVG files, drawn by matplotlib without a display."""

from __future__ import annotations

from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from trajgym.rollout.plots._data import Plot, Series

__all__ = ["draw_plots"]

_INK, _FAINT, _GRID = "#1f2328", "#6a737d", "#e6e8eb"
_COLOURS = (
    "#2f6fde",
    "#e3872d",
    "#2a9d6f",
    "#c2476b",
    "#7b61c4",
    "#c9a227",
    "#3aa6b9",
    "#8a8f98",
)
_MEANING = {
    "passed": "#2a9d6f",
    "not passed": "#c9ced6",
    "ok": "#2a9d6f",
    "error": "#c2476b",
    "invalid": "#e3872d",
    "timeout": "#7b61c4",
    "not executed": "#c9ced6",
    "truncated:turns": "#e3872d",
    "truncated:seconds": "#c9a227",
    "still working": "#8a8f98",
    "equal scores": "#c9ced6",
    "different scores": "#2f6fde",
    "failed": "#c2476b",
    "interrupted": "#7b61c4",
    "cancelled": "#3aa6b9",
}
"""Colours of series with the same meaning in several plots."""
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#c4c9d0",
    "axes.grid": True,
    "axes.labelcolor": _FAINT,
    "axes.labelsize": 9.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "trajgym",
    "text.color": _INK,
    "xtick.color": _FAINT,
    "xtick.labelsize": 9,
    "ytick.color": _FAINT,
    "ytick.labelsize": 9,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
}
_PADS: dict[str, Any] = {"w_pad": 0.14, "h_pad": 0.14}
"""Space around each axes (inches)."""
_LABEL = 38
"""Longest label of a row (characters)."""
_ENTRY = 56
"""Longest entry of a legend."""
_DENSE = 20
"""Most rows that the overview labels."""


def draw_plots(
    plots: Sequence[Plot],
    out: str | os.PathLike[str],
    *,
    format: Literal["png", "svg"] = "png",  # noqa: A002 - the option's name
) -> list[Path]:
    """Draw each plot that is not empty into its own file, and all of them into ``overview``.

    Args:
        plots: what :func:`plot_data` returns.
        out: directory, created if missing; files of the same names are replaced.
        format: of the files. Text in SVG files stays text.

    Returns:
        The files, the overview first; none if all plots are empty.

    Raises:
        InvalidInput: the format is neither of the two.
        MissingExtra: matplotlib is not installed.
    """
    if format not in {"png", "svg"}:
        raise InvalidInput(f"plots are written as png or svg, not {format!r}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    shown = [plot for plot in plots if not plot.empty]
    files: list[Path] = []
    with mpl.rc_context(_STYLE):
        if shown:
            columns = min(3, len(shown))
            rows = -(-len(shown) // columns)
            layout = ConstrainedLayoutEngine(**_PADS, wspace=0.04, hspace=0.06)
            figure = Figure(figsize=(6.2 * columns, 4.0 * rows), layout=layout)
            for place, plot in enumerate(shown, start=1):
                _draw(figure.add_subplot(rows, columns, place), plot, small=True)
            files.append(folder / f"overview.{format}")
            _save(figure, files[0])
        for plot in shown:
            height = max(3.2, 1.6 + 0.27 * len(plot.x)) if plot.kind == "rows" else 4.2
            figure = Figure(figsize=(7.6, height), layout=ConstrainedLayoutEngine(**_PADS))
            _draw(figure.add_subplot(), plot)
            files.append(folder / f"{plot.name}.{format}")
            _save(figure, files[-1])
    return files


def _save(figure: Any, path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    form = path.suffix.lstrip(".")
    metadata = {"Date": None} if form == "svg" else {}
    figure.savefig(part, dpi=144, format=form, facecolor="white", metadata=metadata)
    part.replace(path)


def _draw(axes: Any, plot: Plot, *, small: bool = False) -> None:
    draw = {"lines": _lines, "steps": _steps, "bars": _bars, "rows": _rows}[plot.kind]
    draw(axes, plot, _colours(plot.series))
    if plot.kind == "rows":
        _finish_rows(axes, plot, small=small)
    axes.set_title(plot.title, loc="left", fontsize=12, fontweight="bold", pad=22)
    above = {"xytext": (0, 6), "textcoords": "offset points", "va": "bottom"}
    axes.annotate(plot.note, (0, 1), xycoords="axes fraction", fontsize=9, color=_FAINT, **above)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    along = axes.xaxis if plot.kind == "rows" else axes.yaxis
    if plot.shares:
        along.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    elif plot.kind in {"bars", "rows"}:
        along.get_major_locator().set_params(integer=True)
        along.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if len(plot.series) > 1:
        _legend(axes, plot)


def _legend(axes: Any, plot: Plot) -> None:
    from matplotlib.transforms import offset_copy

    def beside(y: float) -> Any:
        return offset_copy(axes.transAxes, axes.figure, y=y, units="points")

    if sum(len(one.name) + 8 for one in plot.series) > 64:
        longest = max(len(one.name) for one in plot.series)
        columns = 1 if longest > 40 else 2 if longest > 20 else 4
        below = {"loc": "upper left", "bbox_to_anchor": (-0.02, 0), "ncols": columns}
        axes.legend(**below, bbox_transform=beside(-30))
        return
    right = {"loc": "lower right", "bbox_to_anchor": (1.01, 1), "ncols": len(plot.series)}
    axes.legend(**right, bbox_transform=beside(14), columnspacing=1.2)


def _colours(series: Sequence[Series]) -> list[str]:
    """Return a colour per series; those with a fixed meaning keep theirs."""
    taken = {_MEANING[one.name] for one in series if one.name in _MEANING}
    free = cycle([colour for colour in _COLOURS if colour not in taken] or _COLOURS)
    return [_MEANING.get(one.name) or next(free) for one in series]


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _lines(axes: Any, plot: Plot, colours: Sequence[str]) -> None:
    few = len(plot.x) <= 30
    for one, colour in zip(plot.series, colours, strict=True):
        style = {"linewidth": 2, "marker": "o" if few else "", "markersize": 4}
        axes.plot(plot.x, _numbers(one.y), color=colour, label=_short(one.name), **style)
        if one.low is not None and one.high is not None:
            band = {"color": colour, "alpha": 0.13, "linewidth": 0}
            axes.fill_between(plot.x, _numbers(one.low), _numbers(one.high), **band)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(x=0.02)
    if plot.shares:
        axes.set_ylim(-0.02, 1.05)


def _steps(axes: Any, plot: Plot, colours: Sequence[str]) -> None:
    for one, colour in zip(plot.series, colours, strict=True):
        axes.stairs(_numbers(one.y), plot.x, color=colour, linewidth=2, label=_short(one.name))
        axes.stairs(_numbers(one.y), plot.x, color=colour, alpha=0.1, fill=True)
    axes.axvline(0.0, color="#c4c9d0", linewidth=1, zorder=0)
    axes.set_ylim(bottom=0)


def _bars(axes: Any, plot: Plot, colours: Sequence[str]) -> None:
    edges = [float(x) for x in plot.x]
    widths = [0.92 * (right - left) for left, right in pairwise(edges)]
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    if plot.log_x:
        middles = [(left * right) ** 0.5 for left, right in pairwise(edges)]
    below = [0.0] * len(middles)
    for one, colour in zip(plot.series, colours, strict=True):
        heights = [value or 0.0 for value in one.y]
        axes.bar(middles, heights, widths, below, color=colour, label=_short(one.name))
        below = [start + height for start, height in zip(below, heights, strict=True)]
    axes.grid(visible=False, axis="x")
    if not plot.log_x and edges[0] % 1 == 0.5:  # bins around whole numbers
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, 1.06 * max(below) or 1)


def _rows(axes: Any, plot: Plot, colours: Sequence[str]) -> None:
    places = list(range(len(plot.x)))
    left = [0.0] * len(places)
    for one, colour in zip(plot.series, colours, strict=True):
        widths = [value or 0.0 for value in one.y]
        axes.barh(places, widths, 0.72, left, color=colour, label=_short(one.name))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(places, [_short(str(label), _LABEL) for label in plot.x])


def _finish_rows(axes: Any, plot: Plot, *, small: bool) -> None:
    ends = [sum(one.y[place] or 0.0 for one in plot.series) for place in range(len(plot.x))]
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(y=0.02)
    axes.set_xlim(0, 1.08 if plot.shares else 1.12 * max(ends) or 1)
    if small:
        axes.set_yticks(range(len(plot.x)), [_short(str(label), 20) for label in plot.x])
    if small and len(plot.x) > _DENSE:
        axes.set_yticks([])
        return
    for place, end in enumerate(ends):
        text = f"{end:.0%}" if plot.shares else f"{end:,.0f}"
        place_of = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (end, place), fontsize=8.5, color=_FAINT, **place_of)


def _short(text: str, most: int = _ENTRY) -> str:
    text = text.replace("$", r"\$")  # not a formula
    return text if len(text) <= most else text[: most - 1] + "…"
