"""Plots of values: over the turns of a group, and on the tree of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rewards._table import Ints, TurnTable
    from trajgym.rewards._values import TurnValues

__all__ = ["plot_group", "plot_tree"]

_COLOURS = "coolwarm_r"
_MOST_LINES = 12
"""No legend is drawn for more attempts than this."""


def plot_group(values: TurnValues, group: str, path: Path) -> None:
    """Plot the values of every scored attempt of a group over its turns.

    Args:
        values: of any deriver.
        group: id.
        path: where the plot is written; the suffix selects the format (``.svg``, ``.png``).

    Raises:
        InvalidInput: the table has no such group, or none of its attempts is scored.
        MissingExtra: matplotlib is not installed.
    """
    table = values.table
    if group not in table.groups:
        raise InvalidInput(f"group {group} is not in the table; it has {', '.join(table.groups)}")
    of_group = table.attempt_group == table.groups.index(group)
    attempts = np.flatnonzero(of_group & table.attempt_scored).tolist()
    if not attempts:
        raise InvalidInput(f"group {group} has no scored attempt: there is nothing to plot")
    figure, axes = _figure(8.0, 4.5)
    axes.axhline(0.0, color="0.75", linewidth=1)
    for attempt in attempts:
        held = slice(table.member_starts[attempt], table.member_starts[attempt + 1])
        line = values.values[table.member_turn[held]]
        axes.plot(np.arange(line.size), line, marker="o", label=_label(table, attempt))
    axes.set_title(f"{values.stamp.deriver}, group {group}")
    axes.set_xlabel("turn of the attempt")
    axes.set_ylabel(type(values).__name__.lower().rstrip("s"))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(attempts) <= _MOST_LINES:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    _save(figure, path)


def plot_tree(values: TurnValues, session: str, path: Path) -> None:
    """Plot the tree of a session: a node per turn with its value, and scores at the leaves.

    Nodes are labelled with the index of their turn; turns that are not scored are grey.

    Args:
        values: of any deriver.
        session: id.
        path: where the plot is written; the suffix selects the format (``.svg``, ``.png``).

    Raises:
        InvalidInput: the session is not in the table, or has no turns.
        MissingExtra: matplotlib is not installed.
    """
    table = values.table
    place = table.place(session)
    if place is None or place.start == place.stop:
        raise InvalidInput(f"session {session} has no turns in the table: nothing to plot")
    parents = np.where(table.parent[place] < 0, -1, table.parent[place] - place.start)
    depths, rows = table.depth[place], _rows(parents)
    width = 1.5 + 1.1 * (int(depths.max()) + 1)
    figure, axes = _figure(max(width, 4.0), max(0.75 * (rows.max() + 1) + 1.0, 2.5))
    for turn, parent in enumerate(parents.tolist()):
        if parent >= 0:
            axes.plot(depths[[parent, turn]], rows[[parent, turn]], color="0.6", zorder=1)
    _draw_nodes(axes, values, place, rows)
    axes.set_title(f"{values.stamp.deriver}, session {session}")
    axes.set_xlabel("depth (turns before)")
    axes.set_xlim(-0.6, depths.max() + 1.6)
    axes.set_xticks(range(int(depths.max()) + 1))
    axes.set_ylim(rows.max() + 0.7, -0.7)
    axes.set_yticks([])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    _save(figure, path)


def _draw_nodes(axes: Any, values: TurnValues, place: slice, rows: Any) -> None:
    table = values.table
    shown, scored = values.values[place], table.scored[place]
    depths = table.depth[place]
    limit = float(np.abs(shown).max(initial=0.0)) or 1.0
    style = {"edgecolors": "0.3", "s": 1000, "zorder": 2}
    axes.scatter(depths[~scored], rows[~scored], color="0.9", **style)
    axes.scatter(
        depths[scored],
        rows[scored],
        c=shown[scored],
        cmap=_COLOURS,
        vmin=-1.6 * limit,
        vmax=1.6 * limit,
        **style,
    )
    for turn in range(shown.size):
        text = f"{shown[turn]:+.2f}" if scored[turn] else "none"
        at = (depths[turn], rows[turn])
        axes.text(*at, text, ha="center", va="center", fontsize=8, zorder=3)
        below = {"xytext": (0, -24), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"turn {turn}", at, fontsize=7, color="0.4", **below)
    owner = table.session[place.start]
    for attempt in np.flatnonzero(table.attempt_session == owner).tolist():
        leaf = int(table.attempt_leaf[attempt]) - place.start
        if leaf < 0:
            continue
        known = table.attempt_scored[attempt]
        score = f"score {table.attempt_score[attempt]:g}" if known else "not scored"
        axes.annotate(
            score,
            (depths[leaf], rows[leaf]),
            xytext=(22, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )


def _rows(parents: Ints) -> Any:
    """Return a row for each turn: leaves on consecutive rows, parents between their children."""
    children: list[list[int]] = [[] for _ in parents]
    for turn, parent in enumerate(parents.tolist()):
        if parent >= 0:
            children[parent].append(turn)
    rows = np.zeros(parents.size)
    free = 0
    todo = [turn for turn, parent in enumerate(parents.tolist()) if parent < 0][::-1]
    entered: set[int] = set()
    while todo:
        turn = todo[-1]
        if children[turn] and turn not in entered:
            entered.add(turn)
            todo += reversed(children[turn])
            continue
        todo.pop()
        if children[turn]:
            rows[turn] = np.mean(rows[children[turn]])
        else:
            rows[turn] = free
            free += 1
    return rows


def _label(table: TurnTable, attempt: int) -> str:
    name = table.sessions[table.attempt_session[attempt]]
    index = table.attempt_index[attempt]
    rival = f" #{index}" if index else ""
    return f"{name}{rival}: {table.attempt_score[attempt]:g}"


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix.lstrip(".").lower()
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise InvalidInput(
            f"{path}: can't plot to {kind or 'a file without suffix'}; use .svg or .png"
        )
    figure.savefig(path, dpi=120, format=kind)
