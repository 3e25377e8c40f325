"""The terms of derived values, as a table or a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trajgym.rewards import explain, plot_group, plot_tree
from trajgym.rewards.toolkit import SPAN_KINDS
from trajgym.trajectory import InvalidInput, text_of, tool_calls_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from trajgym.rewards import Advantages, Deriver, Rewards
    from trajgym.trajectory import SessionTree, Turn

__all__ = ["draw", "print_explanation", "span_values"]

_NOISE = 1e-12


def print_explanation(
    console: Console, deriver: Deriver, values: Rewards | Advantages, tree: SessionTree
) -> None:
    """Print the terms that add up to each turn's value, and the values of its spans.

    Raises:
        InvalidInput: the session is in no sealed group.
    """
    found = explain(deriver, values.table, tree.record.id)
    names = list(found[0].terms) if found else []
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("turn", "attempt", "after"):
        table.add_column(name, justify="right")
    table.add_column("what it did", no_wrap=True, max_width=40)
    for name in (*names, type(values).__name__.lower().rstrip("s")):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("spans, on top")
    for part, turn in zip(found, tree.turns, strict=True):
        numbers = [*(part.terms[name] for name in names), part.value]
        table.add_row(
            str(turn.index),
            str(turn.attempt),
            "-" if turn.parent is None else str(turn.parent),
            Text(_deed(turn), overflow="ellipsis"),
            *(f"{_rounded(number):+.4g}" for number in numbers),
            Text(", ".join(f"{name} {value:+.4g}" for name, value in part.spans.items())),
        )
    console.print(table)


def draw(values: Rewards | Advantages, session: str | None, path: Path) -> str:
    """Plot a session's tree, or the run's only group; return a line that names the file.

    Raises:
        InvalidInput: no session is given and the run has several groups, or none.
        MissingExtra: matplotlib is not installed.
    """
    if session is not None:
        plot_tree(values, session, path)
        return f"tree of session {session}: {path}"
    groups = values.table.groups
    if len(groups) != 1:
        raise InvalidInput(
            f"the run has {len(groups)} sealed groups, and --plot draws one: give a session with "
            "--explain SESSION to plot its tree",
        )
    plot_group(values, groups[0], path)
    return f"group {groups[0]}: {path}"


def span_values(values: Rewards | Advantages, session: str) -> list[tuple[int, str, float]]:
    """Return turn, span (``tool_call[3:9]``, over response ids) and value, where it is not 0."""
    table, place = values.table, values.table.place(session)
    if values.spans is None or place is None:
        return []
    first, stop = table.span_starts[[place.start, place.stop]].tolist()
    return [
        (
            int(table.turn[table.span_turn[k]]),
            f"{SPAN_KINDS[table.span_kind[k]]}[{table.span_start[k]}:{table.span_end[k]}]",
            float(values.spans[k]),
        )
        for k in range(first, stop)
        if values.spans[k] != 0
    ]


def _rounded(number: float) -> float:
    """Return 0 for rounding errors of terms that cancel out."""
    return number if abs(number) > _NOISE else 0.0


def _deed(turn: Turn) -> str:
    calls = [call["function"] for call in tool_calls_of(turn.message)]
    deeds = [f"{call['name']} {call['arguments']}" for call in calls]
    return " ".join(" ".join(deeds or [text_of(turn.message)]).split())
