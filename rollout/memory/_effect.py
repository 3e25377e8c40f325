"""The effect of memory: sessions that were shown it beside sessions at the same tasks without."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.rollout.evaluation import Counts, Difference, paired_difference
from trajgym.rollout.memory._env import SIGNAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.trajectory import Run, SessionTree

__all__ = ["MemoryEffect", "MemoryUse", "measure_effect", "memory_use"]


class MemoryUse(NamedTuple):
    """Which records a session was shown."""

    records: tuple[str, ...]
    withheld: bool
    """The session is a control: it was shown none, whatever there is."""


@dataclass(slots=True)
class MemoryEffect:
    """Differences in the solved share, with memory minus without, paired by task.

    Args:
        overall: over all tasks that were attempted both with and without memory; None if there are
            none. Sessions for which nothing was found count as sessions with memory.
        records: for each record, over the tasks of the sessions that were shown it. Records that
            are shown together are not told apart.
        treated: number of scored attempts with memory.
        control: number of scored attempts without.
    """

    overall: Difference | None = None
    records: dict[str, Difference] = field(default_factory=dict)
    treated: int = 0
    control: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "overall": None if self.overall is None else self.overall._asdict(),
            "records": {name: found._asdict() for name, found in self.records.items()},
            "treated": self.treated,
            "control": self.control,
        }


def memory_use(tree: SessionTree) -> MemoryUse | None:
    """Return which records a session was shown; None if its environment has no memory."""
    for turn in tree.turns:
        if turn.parent is None and isinstance(found := turn.signals.get(SIGNAL), dict):
            return MemoryUse(tuple(found.get("records", ())), bool(found.get("withheld")))
    return None


def measure_effect(runs: Iterable[Run]) -> MemoryEffect:
    """Return the effect of memory over runs, reading one session at a time.

    Sessions of environments without memory, and those from which it was withheld, are the control.
    Both kinds may be in one run or in several. Only tasks that have both count; intervals are those
    of :func:`trajgym.rollout.evaluation.paired_difference`. Attempts that failed do not count.

    Args:
        runs: runs whose tasks have the same ids.
    """
    control: dict[str, Counts] = {}
    treated: dict[str, Counts] = {}
    shown: dict[str, dict[str, Counts]] = defaultdict(dict)
    effect = MemoryEffect()
    for run in runs:
        for tree in run.sessions():
            counts = _counts(tree)
            use, task = memory_use(tree), tree.record.task
            if use is None or use.withheld:
                _add(control, task, counts)
                effect.control += counts.n
                continue
            _add(treated, task, counts)
            effect.treated += counts.n
            for name in use.records:
                _add(shown[name], task, counts)
    effect.overall = paired_difference(treated, control)
    for name in sorted(shown):
        if (found := paired_difference(shown[name], control)) is not None:
            effect.records[name] = found
    return effect


def _counts(tree: SessionTree) -> Counts:
    outcomes = [attempt.outcome for attempt in tree.attempts if attempt.outcome is not None]
    return Counts(len(outcomes), sum(outcome.passed for outcome in outcomes))


def _add(counts: dict[str, Counts], task: str, found: Counts) -> None:
    n, passed = counts.get(task, Counts(0, 0))
    counts[task] = Counts(n + found.n, passed + found.passed)
