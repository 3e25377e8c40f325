"""Settings of a run: one object, checked where it is made, however it gets to the runner."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_runner import SPEC, Adder, tasks
from trajgym.envs import Budgets
from trajgym.rollout import (
    OpenGroup,
    RunKeywords,
    Runner,
    RunSettings,
    TreeExpansion,
    collect,
    run_sample,
)
from trajgym.trajectory import InvalidInput, Run, Store


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"samples": 0}, "samples is 0; it must be at least 1"),
        ({"samples": 2.0}, "samples is 2.0; it must be an integer"),
        ({"samples": True}, "samples is True; it must be an integer"),
        ({"concurrency": "4"}, "concurrency is '4'; it must be an integer"),
        ({"max_staleness": -1}, "max_staleness is -1; it must be at least 0"),
        ({"seed": None}, "seed is None"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": 0}, "deadline is 0"),
        ({"budgets": 3}, "budgets is 3"),
        ({"budgets": {"turn": 3}}, "unknown budgets"),
        ({"labels": {"a": 1}}, "labels is"),
        ({"expansion": "tree"}, "expansion is 'tree'"),
        ({"sample": 8}, "setting 'sample'; did you mean 'samples'"),
        ({"colour": "red"}, "setting 'colour'; the settings are"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(bad: dict[str, Any], said: str) -> None:
    """A wrong name or value fails where the settings are made, with what was wrong."""
    with pytest.raises(InvalidInput) as caught:
        RunSettings.of(None, bad)
    assert said in str(caught.value)


def test_keywords_go_over_an_object_and_a_mapping() -> None:
    """Keywords replace single values of an object; plain data makes the same settings."""
    made = RunSettings(samples=4, budgets=Budgets(turns=3), labels={"a": "b"})
    assert RunSettings.of(made, {"samples": np.int64(2)}) == RunSettings(
        samples=2, budgets=Budgets(turns=3), labels={"a": "b"}
    )
    plain = {"samples": 4, "budgets": {"turns": 3}, "labels": {"a": "b"}}
    assert RunSettings.of(plain) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert set(RunKeywords.__annotations__) == {one.name for one in fields(RunSettings)}
    assert RunSettings(expansion=TreeExpansion()).expansion == TreeExpansion()


async def test_collect_refuses_before_it_writes(tmp_path: Path) -> None:
    """A misspelt setting fails before the run directory is made."""
    with pytest.raises(InvalidInput, match="did you mean 'retries'"):
        await collect(SPEC, tasks(1), Adder(), tmp_path / "run", retrys=1)  # type: ignore[call-arg]
    assert not (tmp_path / "run").exists()


async def test_an_object_does_what_keywords_do(tmp_path: Path) -> None:
    """Settings given as an object, with a keyword over it, reach the runner."""
    settings = RunSettings(samples=3, labels={"who": "me"})
    report = await collect(SPEC, tasks(2), Adder(), tmp_path, settings=settings, samples=2)
    assert (report.sessions, report.groups) == (4, 2)
    with Run(tmp_path) as run:
        assert {s.record.labels["who"] for s in run.summaries()} == {"me"}
    async with Store(tmp_path / "other") as store:
        runner = Runner(SPEC, tasks(1), Adder(), store=store, settings=settings)
        assert runner.settings is settings or runner.settings == settings


async def test_a_sample_on_its_own_keeps_its_group(tmp_path: Path) -> None:
    """A trainer's loop runs samples one by one; the group records each and can be sealed."""
    (task,) = tasks(1)
    async with Store(tmp_path) as store:
        await store.put_task(task)
        group = OpenGroup.of(task, 2, store=store, id="uid7")
        first = await run_sample(SPEC, Adder(), group, 0)
        assert not group.complete
        second = await run_sample(SPEC, lambda: Adder(), group, 1, session_id="mine")
        assert group.complete
        await group.seal()
    assert (first.id, second.id) == ("uid7-0", "mine")
    with Run(tmp_path) as run:
        (kept,) = run.groups()
        assert kept.sealed
        assert [member.session for member in kept.counted] == ["uid7-0", "mine"]


async def test_a_failed_session_leaves_its_group_and_is_tried_again(tmp_path: Path) -> None:
    """Retries are numbered; each failed session stands in the group with its status."""
    (task,) = tasks(1)

    class Flaky(Adder):
        calls = 0

        async def sample(self, request: Any) -> Any:
            Flaky.calls += 1
            if Flaky.calls < 3:
                raise OSError("no route")
            return await super().sample(request)

    ended: list[str] = []
    from trajgym.rollout import SessionHooks

    hooks = SessionHooks(on_end=lambda session: ended.append(str(session.status)))
    async with Store(tmp_path) as store:
        group = OpenGroup.of(task, 1, store=store)
        last = await run_sample(SPEC, Flaky(), group, settings=RunSettings(retries=3), hooks=hooks)
    assert last.status.scored
    assert ended == ["failed:policy", "failed:policy", str(last.status)]
    lefts = [(member.session.rpartition(".")[2][-1], member.left) for member in group.group.members]
    assert [left for _, left in lefts] == ["failed:policy", "failed:policy", ""]
    assert [member.session for member in group.group.members][1:] == [
        f"{group.group.id}-0.1",
        f"{group.group.id}-0.2",
    ]
