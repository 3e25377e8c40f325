"""`trajgym stats` and `trajgym check`."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trajgym.adapters import check_fitness
from trajgym.cli._mix import part_stats, print_parts
from trajgym.cli._terminal import print_json, print_table, say
from trajgym.rollout.evaluation import Prices, Spent
from trajgym.trajectory import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trajgym.adapters import Fitness
    from trajgym.trajectory import SessionTree

__all__ = ["check_run", "show_stats"]


@dataclass(slots=True)
class _Tally:
    """Counts of one task, or of the whole run."""

    sessions: int = 0
    attempts: int = 0
    scored: int = 0
    passed: int = 0
    scores: list[float] = field(default_factory=list)
    turns: int = 0
    exact: int = 0
    spent: Spent = field(default_factory=Spent)
    calls: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, tree: SessionTree, prices: Prices | None) -> None:
        self.sessions += 1
        for attempt in tree.attempts:
            self.attempts += 1
            self.statuses[str(attempt.status)] += 1
            if attempt.outcome is not None:
                self.scored += 1
                self.passed += attempt.outcome.passed
                self.scores.append(attempt.outcome.score)
        for turn in tree.turns:
            if turn.simulated:
                continue
            self.turns += 1
            self.exact += turn.exact
            self.calls.update(call.status for call in turn.calls)
            self.seconds += turn.policy_seconds + turn.env_seconds
            self.spent.add(turn.policy, turn.usage, prices)

    def to_json(self, *, priced: bool) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        del plain["scores"]
        spent = asdict(plain.pop("spent"))
        if not priced:
            del spent["cost"], spent["unpriced"]
        return plain | spent | {"mean_score": fmean(self.scores) if self.scores else None}


def show_stats(path: Path, *, prices: Path | None = None, as_json: bool = False) -> None:
    """Print the counts of a run, reading one session at a time.

    Args:
        path: of the run.
        prices: price table, for costs.
        as_json: print JSON.
    """
    table = None if prices is None else Prices.load(prices)
    whole, tasks = _Tally(), defaultdict[str, _Tally](_Tally)
    with Run(path) as run:
        for tree in run.sessions():
            whole.add(tree, table)
            tasks[tree.record.task].add(tree, table)
        groups = list(run.groups())
    sealed = sum(group.sealed for group in groups)
    left = Counter(m.left for group in groups for m in group.members if m.left)
    parts = part_stats(path)
    if as_json:
        print_json(
            {
                "all": whole.to_json(priced=table is not None),
                "tasks": {
                    name: tally.to_json(priced=table is not None)
                    for name, tally in sorted(tasks.items())
                },
                "environments": {name: one.to_json() for name, one in parts.items()},
                "groups": {"sealed": sealed, "all": len(groups), "left": left},
            }
        )
        return
    columns = ["sessions", "scored", "passed", "mean score", "turns/session", "tokens/session"]
    rows = [[name, *_cells(tally)] for name, tally in [*sorted(tasks.items()), ("all", whole)]]
    print_table(["task", *columns], rows, right=columns)
    if len(parts) > 1:
        say("")
        print_parts(parts)
    members = f"; members that left: {_counted(left)}" if left else ""
    seconds = f"{whole.seconds:.1f} s in policies and environments"
    say(f"\nendings     {_counted(whole.statuses)}")
    say(f"tool calls  {_counted(whole.calls)}")
    say(f"groups      {sealed} of {len(groups)} sealed{members}")
    say(f"turns       {whole.turns}, {whole.exact} exact; {seconds}")
    spent = whole.spent
    say(f"tokens      {spent.prompt_tokens:,} prompt, {spent.completion_tokens:,} completion")
    if table is not None:
        unpriced = f"; {spent.unpriced} turns have no known price or usage" * bool(spent.unpriced)
        say(f"cost        {spent.cost:.4g} {table.currency}{unpriced}")


def _cells(tally: _Tally) -> list[str]:
    per_session = max(1, tally.sessions)
    return [
        str(tally.sessions),
        str(tally.scored),
        str(tally.passed),
        f"{fmean(tally.scores):.3f}" if tally.scores else "-",
        f"{tally.turns / per_session:.1f}",
        f"{tally.spent.completion_tokens / per_session:.0f}"
        if tally.spent.completion_tokens
        else "-",
    ]


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counter.most_common()) or "none"


def check_run(
    path: Path,
    *,
    trainers: Sequence[str] = (),
    limits: Mapping[str, int | None] | None = None,
    as_json: bool = False,
) -> int:
    """Print the damaged records of a run; return 0, or 1 if there are any.

    Args:
        path: of the run.
        trainers: for each, print what it can't use or learn from.
        limits: arguments of :func:`~trajgym.adapters.check_fitness`.
        as_json: print JSON.
    """
    with Run(path) as run:
        problems = run.check()
        fits = [] if problems else [check_fitness(run, one, **limits or {}) for one in trainers]
    if as_json:
        found = {"run": str(path), "damaged": problems}
        print_json(found | ({"trainers": [_fitness_json(one) for one in fits]} if fits else {}))
        return int(bool(problems))
    for problem in problems:
        say(f"damaged: {problem}", style="red")
    if not problems:
        say(f"{path}: sound")
    for fitness in fits:
        say(
            f"{fitness.trainer}: {fitness.usable} of {fitness.sessions} sessions usable, "
            f"{fitness.rows} rows, the longest of {fitness.longest:,} ids"
        )
        for code, what, count, example in fitness.hindrances:
            say(f"  {code} {count}: {what} (first: {example})", style="yellow")
    return int(bool(problems))


def _fitness_json(fitness: Fitness) -> dict[str, Any]:
    return asdict(fitness) | {"hindrances": [one._asdict() for one in fitness.hindrances]}
