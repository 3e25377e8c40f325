"""Summary of runs: what was solved, how attempts ended, and what they used."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trajgym.rollout.evaluation._estimates import (
    Counts,
    Difference,
    Interval,
    paired_difference,
    pass_at,
    pass_hat,
    solved,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trajgym.rollout.evaluation._prices import Prices
    from trajgym.trajectory import Run, SessionTree, Turn

__all__ = ["EvalSummary", "GroupSummary", "summarize"]

_UNGROUPED = "all"


@dataclass(slots=True, kw_only=True)
class GroupSummary:
    """Statistics of one environment's tasks, or of a group of them.

    Args:
        env: id of the environment, or name of the part of a mixture.
        group: value of the tasks' grouping field, ``all`` for every task.
        tasks: counts of scored attempts by task; tasks without one have 0.
        failures: attempts that failed, by status and cause (first line).
        truncated: scored attempts that a budget ended, by budget.
        turns: number of turns of each scored attempt.
        prompt_tokens: sum over all turns of the agent.
        completion_tokens: sum over all turns of the agent.
        cost: sum over all turns of the agent whose price is known; None without a price table.
        unpriced: number of turns whose price or usage is unknown.
        user_tokens: prompt and completion tokens of simulated users' turns.
        user_cost: cost of those turns whose price is known; None without a price table.
        seconds: time of each scored attempt in the policy and the environment.
        scores: score of each scored attempt.
    """

    env: str
    group: str
    tasks: dict[str, Counts] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    truncated: Counter[str] = field(default_factory=Counter)
    turns: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    unpriced: int = 0
    user_tokens: int = 0
    user_cost: float | None = None
    seconds: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    @property
    def counts(self) -> list[Counts]:
        """Counts of scored attempts of each task."""
        return list(self.tasks.values())

    @property
    def solved(self) -> Interval | None:
        """The solved share with its interval."""
        return solved(self.counts)

    @property
    def ks(self) -> list[int]:
        """The k of pass@k and pass^k: powers of 2 up to the most attempts at a task."""
        most = max((task.n for task in self.counts), default=0)
        return [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= most]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        plain = asdict(self)
        plain["tasks"] = {name: counts._asdict() for name, counts in self.tasks.items()}
        plain["failures"] = dict(self.failures)  # asdict makes pairs the keys of a Counter
        plain["truncated"] = dict(self.truncated)
        plain["attempts"] = sum(counts.n for counts in self.counts)
        plain["solved"] = None if self.solved is None else self.solved._asdict()
        plain["pass_at"] = {str(k): pass_at(k, self.counts) for k in self.ks}
        plain["pass_hat"] = {str(k): pass_hat(k, self.counts) for k in self.ks}
        for name in ("turns", "seconds", "scores"):
            values = plain.pop(name)
            plain[f"mean_{name}"] = fmean(values) if values else None
        return plain


@dataclass(slots=True, kw_only=True)
class EvalSummary:
    """An evaluation of one or several environments.

    Args:
        groups: for each environment, all tasks first, then its task groups.
        currency: currency of the costs.
    """

    groups: list[GroupSummary]
    currency: str = "USD"

    def against(self, other: EvalSummary) -> dict[tuple[str, str], Difference]:
        """Return the paired differences from another evaluation, by environment and group.

        Groups that the other evaluation lacks, or without a common scored task, are omitted.
        """
        found = {}
        theirs = {(group.env, group.group): group.tasks for group in other.groups}
        for group in self.groups:
            key = (group.env, group.group)
            difference = paired_difference(group.tasks, theirs.get(key, {}))
            if difference is not None:
                found[key] = difference
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"currency": self.currency, "groups": [group.to_json() for group in self.groups]}


def summarize(
    runs: Iterable[Run], *, by: str | None = None, prices: Prices | None = None
) -> EvalSummary:
    """Return the summary of runs, reading one session at a time.

    A failed attempt counts as a failure, not as unsolved. Rival attempts of a forked session count
    as attempts.

    Args:
        runs: one or several runs, for example one per environment.
        by: a key of ``Task.data`` by whose values the tasks are grouped.
        prices: price table for costs.
    """
    made: dict[tuple[str, str], GroupSummary] = {}
    for run in runs:
        groups = _groups(run, by)
        for tree in run.sessions():
            env = tree.record.labels.get("part", tree.record.env_id)
            for group in [_UNGROUPED, *groups.get(tree.record.task, ())]:
                summary = made.setdefault((env, group), GroupSummary(env=env, group=group))
                _add(summary, tree, prices)
    ordered = sorted(made, key=lambda key: (key[0], key[1] != _UNGROUPED, key[1]))
    currency = prices.currency if prices else "USD"
    return EvalSummary(groups=[made[key] for key in ordered], currency=currency)


def _groups(run: Run, by: str | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    if by is not None:
        for task in run.tasks():
            if by in task.data:
                found[task.id].append(f"{by}={task.data[by]}")
    return found


def _add(summary: GroupSummary, tree: SessionTree, prices: Prices | None) -> None:
    n, passed = summary.tasks.get(tree.record.task, Counts(0, 0))
    for attempt in tree.attempts:
        if attempt.outcome is None:
            cause = attempt.cause.strip().partition("\n")[0]
            summary.failures[f"{attempt.status}: {cause}" if cause else str(attempt.status)] += 1
            continue
        n, passed = n + 1, passed + attempt.outcome.passed
        if attempt.status.kind == "truncated":
            summary.truncated[attempt.status.detail] += 1
        turns = tree.trajectory(attempt)
        summary.turns.append(len(turns))
        summary.seconds.append(sum(turn.policy_seconds + turn.env_seconds for turn in turns))
        summary.scores.append(attempt.outcome.score)
    summary.tasks[tree.record.task] = Counts(n, passed)
    for turn in tree.turns:
        if turn.simulated:
            _add_user(summary, turn, prices)
            continue
        if turn.usage is not None:
            summary.prompt_tokens += turn.usage.prompt_tokens
            summary.completion_tokens += turn.usage.completion_tokens
        if prices is not None:
            cost = prices.cost(turn.policy, turn.usage)
            summary.unpriced += cost is None
            summary.cost = (summary.cost or 0.0) + (cost or 0.0)


def _add_user(summary: GroupSummary, turn: Turn, prices: Prices | None) -> None:
    """Count what a simulated user used, apart from the agent."""
    if turn.usage is not None:
        summary.user_tokens += turn.usage.prompt_tokens + turn.usage.completion_tokens
        if prices is not None:
            cost = prices.cost(turn.policy, turn.usage)
            summary.unpriced += cost is None
            summary.user_cost = (summary.user_cost or 0.0) + (cost or 0.0)
