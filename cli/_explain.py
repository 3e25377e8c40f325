"""The terms of derived values, as a table or a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trajgym.rewards import explain, plot_group, plot_tree
from trajgym.trajectory import InvalidInput, text_of, tool_calls_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from trajgym.rewards import Advantages, Deriver, Rewards
    from trajgym.trajectory import Group, Run, SessionTree, Turn

__all__ = ["draw_only_group", "draw_session", "print_explanation"]

_NOISE = 1e-12
_DEED = "what it did"
_SHORTEST, _LONGEST = len(_DEED), 40
"""Width of that column, which gives way to the numbers."""
_GAP = 2


def print_explanation(
    console: Console, deriver: Deriver, values: Rewards | Advantages, tree: SessionTree
) -> None:
    """Print the terms that add up to each turn's value, and the values of its spans.

    Raises:
        InvalidInput: the session is in no sealed group.
    """
    found = explain(deriver, values.table, tree.record.id)
    names = list(found[0].terms) if found else []
    rows = [
        [
            str(turn.index),
            str(turn.attempt),
            "-" if turn.parent is None else str(turn.parent),
            _deed(turn),
            *(f"{_rounded(part.terms[name]):+.4g}" for name in names),
            f"{_rounded(part.value):+.4g}",
            ", ".join(f"{name} {value:+.4g}" for name, value in part.spans.items()),
        ]
        for part, turn in zip(found, tree.turns, strict=True)
    ]
    of = type(values).__name__.lower().rstrip("s")
    columns = ["turn", "attempt", "after", _DEED, *names, of, "spans, on top"]
    if not any(row[-1] for row in rows):
        del columns[-1]
    widths = [max([len(name), *(len(row[at]) for row in rows)]) for at, name in enumerate(columns)]
    taken = sum(widths) - widths[columns.index(_DEED)] + _GAP * (len(columns) - 1)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        if name == _DEED:
            room = min(_LONGEST, max(_SHORTEST, console.width - taken))
            table.add_column(name, no_wrap=True, max_width=room)
        else:
            left = name == columns[-1] != of
            table.add_column(name, justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in row[: len(columns)]))
    console.print(table)


def draw_session(values: Rewards | Advantages, session: str, path: Path) -> str:
    """Plot a session's tree; return a line that names the file.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    plot_tree(values, session, path)
    return f"tree of session {session}: {path}"


def draw_only_group(run: Run, deriver: Deriver, path: Path) -> str:
    """Plot the values of the run's only group; return a line that names the file.

    Raises:
        InvalidInput: the run has several sealed groups, or none.
        MissingExtra: matplotlib is not installed.
    """
    only: Group | None = None
    sealed = 0
    for group in run.groups():
        if group.sealed:
            only, sealed = group, sealed + 1
    if only is None or sealed != 1:
        raise InvalidInput(
            f"the run has {sealed} sealed groups, and --plot draws one: give a session with "
            "--explain SESSION to plot its tree",
        )
    trees = run.sessions(member.session for member in only.members)
    plot_group(deriver.derive(deriver.table([only], trees)), only.id, path)
    return f"group {only.id}: {path}"


def _rounded(number: float) -> float:
    """Return 0 for rounding errors of terms that cancel out."""
    return number if abs(number) > _NOISE else 0.0


def _deed(turn: Turn) -> str:
    calls = [call["function"] for call in tool_calls_of(turn.message)]
    deeds = [f"{call['name']} {call['arguments']}" for call in calls]
    return " ".join(" ".join(deeds or [text_of(turn.message)]).split())
