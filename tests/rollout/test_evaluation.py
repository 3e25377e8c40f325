"""Evaluation: estimates against enumeration and simulation, and figures of real runs."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import worlds
from trajgym.cli._policies import make_policy
from trajgym.envs import EnvSpec
from trajgym.rollout import collect
from trajgym.rollout.evaluation import (
    Counts,
    Prices,
    paired_difference,
    pass_at,
    pass_hat,
    solved,
    summarize,
)
from trajgym.trajectory import InvalidInput, Run, Task, Usage

assert worlds.Counter

counts = st.integers(1, 6).flatmap(lambda n: st.builds(Counts, st.just(n), st.integers(0, n)))


@given(st.lists(counts, min_size=1, max_size=4), st.integers(1, 6))
def test_pass_at_and_pass_hat_agree_with_enumeration(tasks: list[Counts], k: int) -> None:
    """Both are the mean, over all choices of k attempts, of any and of all passing."""
    chosen = [
        list(itertools.combinations([True] * c + [False] * (n - c), k)) for n, c in tasks if n >= k
    ]
    if not chosen:
        assert pass_at(k, tasks) is None
        assert pass_hat(k, tasks) is None
        return
    some = [sum(any(pick) for pick in picks) / len(picks) for picks in chosen]
    every = [sum(all(pick) for pick in picks) / len(picks) for picks in chosen]
    assert pass_at(k, tasks) == pytest.approx(sum(some) / len(some))
    assert pass_hat(k, tasks) == pytest.approx(sum(every) / len(every))


def test_k_of_zero_is_refused() -> None:
    """pass@0 means nothing."""
    with pytest.raises(InvalidInput, match="at least 1"):
        pass_at(0, [Counts(1, 1)])


@given(st.lists(counts, min_size=1, max_size=8))
def test_the_interval_holds_its_estimate(tasks: list[Counts]) -> None:
    """The solved share lies in its interval, which lies in [0, 1] and has a width."""
    found = solved(tasks)
    assert found is not None
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    assert found.high > found.low


@pytest.mark.parametrize("spread", [0.0, 0.45])
def test_the_interval_covers_the_truth(spread: float) -> None:
    """About 95% of intervals hold the true share, also where attempts at a task resemble."""
    chance = random.Random(3)
    held, games = 0, 200
    for _ in range(games):
        tasks = []
        for _ in range(40):
            p = 0.5 + chance.choice([-spread, spread])
            tasks.append(Counts(8, sum(chance.random() < p for _ in range(8))))
        found = solved(tasks)
        assert found is not None
        held += found.low <= 0.5 <= found.high
    assert 0.90 <= held / games <= 0.99


def test_a_paired_difference_sees_what_unpaired_intervals_hide() -> None:
    """Tasks differ much, runs little: the paired interval excludes 0, the plain ones overlap."""
    before = {str(i): Counts(8, i % 9) for i in range(60)}
    after = {name: Counts(8, min(8, c.passed + 1)) for name, c in before.items()}
    found = paired_difference(after, before)
    assert found is not None
    assert found.low is not None
    assert found.low > 0.05
    ours, theirs = solved(list(after.values())), solved(list(before.values()))
    assert ours is not None
    assert theirs is not None
    assert ours.low < theirs.high


def test_runs_without_common_tasks_are_not_compared() -> None:
    """No shared task gives no difference; one gives a value without an interval."""
    assert paired_difference({"a": Counts(1, 1)}, {"b": Counts(1, 1)}) is None
    one = paired_difference({"a": Counts(2, 1)}, {"a": Counts(2, 2)})
    assert one is not None
    assert (one.value, one.low, one.tasks) == (-0.5, None, 1)


def _run(path: Path) -> Run:
    tasks = [Task(id=name, data={"kind": kind}) for name, kind in [("a", "x"), ("stuck", "y")]]
    policy = make_policy("scripted", worlds.Counter)
    asyncio.run(collect(EnvSpec(id="test/counter"), tasks, policy, path, samples=2))
    return Run(path)


def test_failures_are_counted_apart(tmp_path: Path) -> None:
    """A failed attempt is in no rate; it is counted by status and cause."""
    with _run(tmp_path / "run") as run:
        summary = summarize([run], by="kind")
    whole, first, second = summary.groups
    assert (whole.group, first.group, second.group) == ("all", "kind=x", "kind=y")
    assert whole.tasks == {"a": Counts(2, 0), "stuck": Counts(0, 0)}
    assert whole.solved == first.solved == solved([Counts(2, 0)])
    assert second.solved is None
    ((cause, count),) = second.failures.items()
    assert count == 2
    assert cause.startswith("failed:env: ")
    plain: dict[str, Any] = summary.to_json()
    assert plain["groups"][0]["pass_at"] == {"1": 0.0, "2": 0.0}
    assert summary.against(summary)["test/counter", "all"].value == 0


def test_prices_are_read_and_unknown_models_are_counted(tmp_path: Path) -> None:
    """Costs follow the table; a model that it lacks gives None, not 0."""
    table = tmp_path / "prices.toml"
    table.write_text('date = 2026-11-01\n[models."m"]\nprompt = 1.0\ncompletion = 4.0\n')
    prices = Prices.load(table)
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=500_000)
    assert prices.cost("openai:m", usage) == 3.0
    assert prices.cost("openai:other", usage) is None
    assert prices.cost("openai:m", None) is None
    assert prices.date == "2026-11-01"
    table.write_text('[models."m"]\nprompt = -1\ncompletion = 4.0\n')
    with pytest.raises(InvalidInput, match="prompt is -1"):
        Prices.load(table)
