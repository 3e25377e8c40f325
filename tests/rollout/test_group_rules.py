"""Groups that end early, sessions that are overtaken, and members that are not chosen."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_runner import SPEC, Adder, tasks
from tests.worlds import call
from trajgym.envs import Reply
from trajgym.rewards.filters import DynamicSampling, ResampleOnCorrect
from trajgym.rollout import (
    Policy,
    PolicyRequest,
    Progress,
    Runner,
    RunSettings,
    SealedGroup,
    collect,
)
from trajgym.rollout.rules import Admission, Enough
from trajgym.trajectory import InvalidInput, Run, Store


class Racing(Policy):
    """Finishes the samples that it is told to; the others wait in their second turn."""

    name = "test:racing"

    def __init__(self, quick: dict[int, int]) -> None:
        self.quick = quick
        self.waiting: set[str] = set()
        self.cancelled: set[str] = set()
        self.go = asyncio.Event()

    async def sample(self, request: PolicyRequest) -> Reply:
        if request.turn == 0:
            return Reply(
                message=call(("add", json.dumps({"n": self.quick.get(request.sample, 1)})))
            )
        if request.sample not in self.quick and not self.go.is_set():
            self.waiting.add(request.session)
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.add(request.session)
                raise
        return Reply(message=call(("finish", "{}")))


def members(sealed: SealedGroup) -> Counter[str]:
    return Counter(member.left for member in sealed.group.members)


def statuses(out: Path) -> Counter[str]:
    with Run(out) as run:
        return Counter(str(s.attempts[0].status) for s in run.summaries())


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"enough": {"sessions": 0}}, "enough sessions is 0"),
        ({"enough": {"sessions": 1, "solved": -1}}, "enough solved is -1"),
        ({"enough": {"session": 1}}, "enough has no 'session'"),
        ({"outdated": {"versions": -1}}, "outdated versions is -1"),
        (
            {"outdated": {"versions": 1, "action": "drop"}},
            "action is 'drop'",
        ),
        ({"select": "dapo"}, "select is 'dapo'; it must be a Filter"),
        ({"outdated": 3}, "outdated is 3; it must be Outdated"),
    ],
)
def test_bad_rules_are_refused(bad: dict[str, Any], said: str) -> None:
    """The setting, the field and the value are named."""
    with pytest.raises(InvalidInput, match=said):
        RunSettings.of(bad)


@given(
    scores=st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=12),
    sessions=st.integers(1, 8),
    solved=st.integers(0, 4),
    unsolved=st.integers(0, 4),
)
def test_enough_stays_enough(
    scores: list[float], sessions: int, solved: int, unsolved: int
) -> None:
    """It is met exactly when all three numbers are, and further sessions don't change that."""
    rule = Enough(sessions=sessions, solved=solved, unsolved=unsolved)
    good = scores.count(1.0)
    wanted = len(scores) >= sessions and good >= solved and len(scores) - good >= unsolved
    assert rule.met(scores) == wanted
    if wanted:
        assert rule.met([*scores, 0.5])


async def test_a_group_ends_when_it_has_enough(tmp_path: Path) -> None:
    """Mixed outcomes of two sessions end the group: running ones leave by name."""
    policy = Racing({0: 3, 1: 1})  # solved, unsolved
    rule = Enough(sessions=2, solved=1, unsolved=1)
    options: dict[str, Any] = {"samples": 12, "concurrency": 5, "enough": rule}
    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(1), policy, store=store, **options) as runner:
            async with asyncio.timeout(60):
                (sealed,) = [one async for one in runner]
    assert members(sealed)[""] == 2
    surplus = members(sealed)["surplus"]
    assert 3 <= surplus <= 5
    assert set(members(sealed)) == {"", "surplus"}
    assert len(policy.cancelled) == len(policy.waiting) >= 3
    assert [tree.record.sample for tree in sealed.sessions] == [0, 1]
    assert statuses(tmp_path) == {"completed": 2, "cancelled": surplus}
    again = await collect(SPEC, tasks(1), policy, tmp_path, **options)
    assert (again.sessions, again.groups) == (0, 0)


async def test_without_mixed_outcomes_all_samples_are_run(tmp_path: Path) -> None:
    """A group whose sessions all end alike gets every sample."""
    policy = Racing(dict.fromkeys(range(6), 1))
    rule = Enough(sessions=2, solved=1, unsolved=1)
    report = await collect(SPEC, tasks(2), policy, tmp_path, samples=6, enough=rule)
    assert report.statuses == {"completed": 12}


async def overtaken(out: Path, action: str, **options: Any) -> tuple[Racing, SealedGroup]:
    policy = Racing({0: 3})
    async with Store(out) as store:
        runner = Runner(
            SPEC,
            tasks(1),
            policy,
            store=store,
            samples=2,
            outdated={"versions": 1, "action": action},
            **options,
        )
        async with runner, asyncio.timeout(60):
            while not policy.waiting:
                await asyncio.sleep(0.01)
            runner.set_version(1)
            await asyncio.sleep(0)
            assert not policy.cancelled  # one version behind is not too old
            policy.waiting.clear()
            runner.set_version(2)
            while not policy.cancelled:
                await asyncio.sleep(0.01)
            policy.go.set()
            (sealed,) = [one async for one in runner]
    return policy, sealed


async def test_an_overtaken_session_is_cut_and_scored(tmp_path: Path) -> None:
    """What it has done so far is verified and counts; the sessions of its group too."""
    _, sealed = await overtaken(tmp_path, "cut")
    assert members(sealed) == {"": 2}
    first = sealed.sessions[1].attempts[0]
    assert str(first.status) == "truncated:staleness"
    assert first.cause == "its oldest token is 2 versions behind"
    assert first.outcome is not None
    assert len(sealed.sessions[1].turns) == 1


@pytest.mark.parametrize("max_tries", [10, 1])
async def test_an_overtaken_session_is_sampled_again(max_tries: int, tmp_path: Path) -> None:
    """Its sample starts anew without using up retries, as often as the run allows."""
    _, sealed = await overtaken(tmp_path, "resample", max_tries=max_tries)
    assert statuses(tmp_path)["failed:staleness"] == 1
    assert members(sealed)["failed:staleness"] == 1
    assert members(sealed)[""] == (2 if max_tries > 1 else 1)


async def test_groups_without_a_difference_make_room(tmp_path: Path) -> None:
    """With dynamic sampling, a batch is filled with groups that have both outcomes."""

    class Some(Adder):
        async def sample(self, request: PolicyRequest) -> Reply:
            if request.turn == 0 and request.task is not None and request.task.id in {"t0", "t2"}:
                return Reply(message=call(("add", json.dumps({"n": 9}))))
            return await super().sample(request)

    async with Store(tmp_path) as store:
        async with Runner(
            SPEC,
            tasks(5),
            Some(),
            store=store,
            samples=4,
            concurrency=2,
            admission=Admission(batch=2),
            select=DynamicSampling(),
        ) as runner:
            first = [await anext(runner) for _ in range(4)]
            assert sorted(one.group.task for one in first if one.sessions) == ["t1", "t3"]
            assert runner.capacity.rejected == 2
            runner.set_version(1)
            (last,) = [one async for one in runner]
    assert last.group.task == "t4"
    with Run(tmp_path) as run:
        left = {g.task: Counter(m.left for m in g.members) for g in run.groups()}
    assert left["t0"] == left["t2"] == {"filtered:dynamic_sampling": 4}
    assert left["t1"] == {"": 4}


async def test_resample_on_correct_is_applied_online(tmp_path: Path) -> None:
    """Half of the sessions count, by the filter's choice; the others leave by its name."""
    async with Store(tmp_path) as store:
        async with Runner(
            SPEC, tasks(1), Adder(), store=store, samples=8, select=ResampleOnCorrect()
        ) as runner:
            (sealed,) = [one async for one in runner]
    assert members(sealed) == {"": 4, "filtered:resample_on_correct": 4}
    scores = [
        tree.attempts[0].outcome.score for tree in sealed.sessions if tree.attempts[0].outcome
    ]
    assert scores.count(1.0) == 1  # the only one of eight


def test_events_name_the_surplus(tmp_path: Path) -> None:
    """A session that is not needed ends as cancelled, with the reason as its cause."""
    ends: list[Progress] = []
    policy = Racing({0: 3})

    async def run() -> None:
        await collect(
            SPEC,
            tasks(1),
            policy,
            tmp_path,
            samples=3,
            enough=Enough(sessions=1),
            on_progress=lambda e: ends.append(e) if e.kind == "ended" else None,
        )

    asyncio.run(asyncio.wait_for(run(), 60))
    causes = {e.status: e.cause for e in ends}
    assert causes["cancelled"] == "surplus: the group has enough sessions"
