"""`trajgym stats` and `trajgym check`."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from trajgym.trajectory import Run

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.trajectory import SessionTree

__all__ = ["check_run", "show_stats"]


@dataclass(slots=True)
class _Tally:
    """Numbers of one task, or of the whole run."""

    sessions: int = 0
    attempts: int = 0
    scored: int = 0
    passed: int = 0
    scores: list[float] = field(default_factory=list)
    turns: int = 0
    exact: int = 0
    completion_tokens: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, tree: SessionTree) -> None:
        self.sessions += 1
        for attempt in tree.attempts:
            self.attempts += 1
            self.statuses[str(attempt.status)] += 1
            if attempt.outcome is not None:
                self.scored += 1
                self.passed += attempt.outcome.passed
                self.scores.append(attempt.outcome.score)
        for turn in tree.turns:
            self.turns += 1
            self.exact += turn.exact
            self.calls.update(call.status for call in turn.calls)
            self.seconds += turn.policy_seconds + turn.env_seconds
            if turn.usage is not None:
                self.completion_tokens += turn.usage.completion_tokens


def show_stats(path: Path) -> None:
    """Print the numbers of a run, reading one session at a time."""
    whole, tasks = _Tally(), defaultdict[str, _Tally](_Tally)
    with Run(path) as run:
        for tree in run.sessions():
            whole.add(tree)
            tasks[tree.record.task].add(tree)
        groups = list(run.groups())
    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("task")
    for name in ("sessions", "scored", "passed", "mean score", "turns/session", "tokens/session"):
        table.add_column(name, justify="right")
    for name, tally in [*sorted(tasks.items()), ("all", whole)]:
        table.add_row(name, *_cells(tally), style="bold" if tally is whole else "")
    console.print(table)
    console.print(f"\nendings     {_counted(whole.statuses)}", highlight=False, soft_wrap=True)
    console.print(f"tool calls  {_counted(whole.calls)}", highlight=False, soft_wrap=True)
    sealed = sum(group.sealed for group in groups)
    left = Counter(m.left for group in groups for m in group.members if m.left)
    members = f"; members that left: {_counted(left)}" if left else ""
    console.print(
        f"groups      {sealed} of {len(groups)} sealed{members}", highlight=False, soft_wrap=True
    )
    console.print(
        f"turns       {whole.turns}, {whole.exact} exact; {whole.seconds:.1f} s of agents' time",
        highlight=False,
        soft_wrap=True,
    )


def _cells(tally: _Tally) -> list[str]:
    per_session = max(1, tally.sessions)
    return [
        str(tally.sessions),
        str(tally.scored),
        str(tally.passed),
        f"{fmean(tally.scores):.3f}" if tally.scores else "-",
        f"{tally.turns / per_session:.1f}",
        f"{tally.completion_tokens / per_session:.0f}" if tally.completion_tokens else "-",
    ]


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counter.most_common()) or "none"


def check_run(path: Path) -> None:
    """Print what is damaged in a run; exit status 1 if something is."""
    console = Console()
    with Run(path) as run:
        problems = run.check()
    for problem in problems:
        console.print(f"[red]damaged:[/] {problem}", highlight=False, soft_wrap=True)
    if problems:
        sys.exit(1)
    console.print(f"{path}: sound")
