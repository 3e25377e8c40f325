"""The data of a plot, in a form that can be written as JSON and drawn by any front end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = ["Kind", "Plot", "Series"]

Kind: TypeAlias = Literal["lines", "steps", "bars", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a plot.

    Args:
        name: for the legend.
        y: one value per point, bin or label; None where there is none.
        low: lower end of a band around ``y``, None without a band.
        high: upper end of the band.
    """

    name: str
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What a plot shows.

    Args:
        name: file name without suffix, in kebab case.
        title: one line.
        x_label: what is along the x axis, with its unit.
        y_label: what is along the y axis, with its unit.
        kind: ``lines`` over the points ``x``; ``bars``, stacked, and ``steps``, not filled,
            over bins whose edges are ``x`` (one more than values); ``rows``, horizontal stacked
            bars with the labels ``x``, the first one on top.
        x: points, edges or labels.
        series: in drawing order; empty if the run has nothing to show.
        log_x: whether the x axis is logarithmic.
        shares: whether the y values are shares, to be shown as percentages.
        note: one line of context; for an empty plot, what is missing.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    kind: Kind
    x: list[float] | list[str]
    series: list[Series] = field(default_factory=list)
    log_x: bool = False
    shares: bool = False
    note: str = ""

    @property
    def empty(self) -> bool:
        """True if there is nothing to draw."""
        return not self.series or not self.x

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, without NaN."""
        return asdict(self)
