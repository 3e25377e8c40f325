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
