"""`trajgym collect --mix`: several environments in one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trajgym.cli._terminal import print_table
from trajgym.envs import Budgets
from trajgym.rollout.mixture import load_mixture
from trajgym.trajectory import InvalidInput, Run

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rollout.mixture import Mixture

__all__ = ["PartStats", "mixture_of", "part_stats", "planned", "print_parts"]


def mixture_of(path: Path, turns: int | None) -> Mixture:
    """Read a mixture from a file.

    Args:
        path: of the file.
        turns: turn budget of the parts that have none in the file.

    Raises:
        InvalidInput: see :func:`trajgym.rollout.mixture.load_mixture`; or the run would never end.
    """
    mixture = load_mixture(path)
    if mixture.groups is None and (mixture.repeat or mixture.curriculum is not None):
        raise InvalidInput(f"{path}: groups is missing: tasks are repeated, so the run has no end")
    if turns is None:
        return mixture
    parts = [
        part
        if part.budgets is not None
        else replace(
            part,
            budgets=Budgets.from_json({**asdict(part.spec.resolve().budgets), "turns": turns}),
        )
        for part in mixture.parts
    ]
    return replace(mixture, parts=parts)


def planned(mixture: Mixture, samples: int) -> tuple[int, int]:
    """Return how many groups, and about how many sessions, a mixture's run has."""
    sizes = [(len(part.tasks), part.samples or samples, part.weight) for part in mixture.parts]
    once = sum(tasks for tasks, _, _ in sizes)
    if mixture.groups is None or (not mixture.repeat and once <= mixture.groups):
        return once, sum(tasks * n for tasks, n, _ in sizes)
    weights = sum(weight for _, _, weight in sizes)
    mean = sum(n * weight for _, n, weight in sizes) / weights
    return mixture.groups, round(mixture.groups * mean)


@dataclass(slots=True)
class PartStats:
    """Figures of the sessions of one environment of a run."""

    groups: int = 0
    sealed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    scored: int = 0
    passed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {**asdict(self), "statuses": dict(self.statuses)}


def part_stats(path: Path) -> dict[str, PartStats]:
    """Return the figures of a run by part, or by environment if it is no mixture's."""
    found: dict[str, PartStats] = defaultdict(PartStats)
    part_of: dict[str, str] = {}
    with Run(path) as run:
        for summary in run.summaries():
            record = summary.record
            name = record.labels.get("part", record.env_id)
            part_of[record.task] = name
            stats = found[name]
            for attempt in summary.attempts:
                stats.statuses[str(attempt.status)] += 1
                stats.scored += attempt.outcome is not None
                stats.passed += attempt.outcome is not None and attempt.outcome.passed
        for group in run.groups():
            if group.task in part_of:
                found[part_of[group.task]].groups += 1
                found[part_of[group.task]].sealed += group.sealed
    return dict(found)


def print_parts(stats: dict[str, PartStats]) -> None:
    """Print the figures as a table."""
    columns = ["groups", "sealed", "sessions", "scored", "passed"]
    rows = []
    for name, one in stats.items():
        numbers = [one.groups, one.sealed, one.statuses.total(), one.scored, one.passed]
        rows.append([name, *map(str, numbers)])
    print_table(["environment", *columns], rows, right=columns)
