"""Groups that end early, sessions that are overtaken, and members that are not chosen."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from heapq import heappop, heappush
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
    """Finishes the samples that it is told to; the others wait in their second turn.

    The quick samples finish once ``behind`` others are waiting.
    """

    name = "test:racing"

    def __init__(self, quick: dict[int, int], *, behind: int = 0) -> None:
        self.quick = quick
        self.behind = behind
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
        while request.sample in self.quick and len(self.waiting) < self.behind:
            await asyncio.sleep(0.01)
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
        ({"enough": {"sessions": 1, "in_order": 1}}, "enough in_order is 1"),
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


def simulated(rule: Enough, samples: list[tuple[int, float | None]], places: int) -> set[int]:
    """Return what a group keeps of samples of (seconds, score); on a clock of its own.

    Samples begin in their order, as many at a time as there are places; None has failed.
    """
    scores: dict[int, float] = {}
    waiting = set(range(len(samples)))
    queue = list(range(len(samples)))
    running: list[tuple[int, int]] = []
    now = 0
    while waiting:
        while queue and len(running) < places:
            sample = queue.pop(0)
            heappush(running, (now + samples[sample][0], sample))
        now, sample = heappop(running)
        waiting.discard(sample)
        if (score := samples[sample][1]) is not None:
            scores[sample] = score
        if (kept := rule.kept(scores, waiting)) is not None:
            return kept
    return set(scores)


@given(
    scores=st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=12),
    data=st.data(),
    places=st.integers(1, 12),
    rule=st.builds(
        Enough,
        sessions=st.integers(1, 6),
        solved=st.integers(0, 2),
        unsolved=st.integers(0, 2),
        in_order=st.just(value=True),
    ),
)
def test_in_order_no_session_is_preferred_for_being_short(
    scores: list[float | None], data: st.DataObject, places: int, rule: Enough
) -> None:
    """Whatever the sessions take, a group keeps the first ones that are enough."""
    seconds = data.draw(st.lists(st.integers(1, 99), min_size=len(scores), max_size=len(scores)))
    kept = simulated(rule, list(zip(seconds, scores, strict=True)), places)
    scored = {sample: score for sample, score in enumerate(scores) if score is not None}
    wanted = next(
        (
            set(first)
            for end in range(1, len(scored) + 1)
            if rule.met((first := dict(list(scored.items())[:end])).values())
        ),
        set(scored),
    )
    assert kept == wanted


def test_the_order_of_ends_prefers_short_sessions() -> None:
    """Failures that take a tenth of the time are all that a group keeps, unless it is in order."""
    samples: list[tuple[int, float | None]] = [(10, 1.0), (1, 0.0)] * 6
    by_end = simulated(Enough(sessions=4), samples, places=8)
    in_order = simulated(Enough(sessions=4, in_order=True), samples, places=8)
    assert [samples[i][1] for i in sorted(by_end)] == [0.0] * 4
    assert [samples[i][1] for i in sorted(in_order)] == [1.0, 0.0, 1.0, 0.0]


async def test_a_slow_session_counts_before_later_ones(tmp_path: Path) -> None:
    """In order, the group waits for its first sample; what was scored after the second leaves."""
    policy = Racing(dict.fromkeys(range(1, 6), 1))
    ended: list[str] = []

    def note(event: Progress) -> None:
        if event.kind == "ended":
            ended.append(event.session)
            if len(ended) == 5:
                policy.go.set()

    rule = Enough(sessions=2, in_order=True)
    options: dict[str, Any] = {"samples": 6, "concurrency": 6, "enough": rule}
    async with Store(tmp_path) as store:
        async with Runner(
            SPEC, tasks(1), policy, store=store, on_progress=note, **options
        ) as runner:
            async with asyncio.timeout(120):
                (sealed,) = [one async for one in runner]
    assert members(sealed) == {"": 2, "surplus": 4}
    assert [tree.record.sample for tree in sealed.sessions] == [0, 1]
    assert statuses(tmp_path) == {"completed": 6}
    with Run(tmp_path) as run:
        (stored,) = run.groups()
    assert {member.sample for member in stored.counted} == {0, 1}
    again = await collect(SPEC, tasks(1), policy, tmp_path, **options)
    assert (again.sessions, again.groups) == (0, 0)


async def test_a_group_ends_when_it_has_enough(tmp_path: Path) -> None:
    """Mixed outcomes of two sessions end the group: running ones leave by name."""
    policy = Racing({0: 3, 1: 1}, behind=3)  # solved, unsolved
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
    ended = asyncio.Event()

    def note(event: Progress) -> None:
        if event.kind == "ended":
            ended.set()

    async with Store(out) as store:
        runner = Runner(
            SPEC,
            tasks(1),
            policy,
            store=store,
            samples=2,
            outdated={"versions": 1, "action": action},
            on_progress=note,
            **options,
        )
        async with runner, asyncio.timeout(60):
            await ended.wait()  # the quick sample; only the other one can be overtaken
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
    policy = Racing({0: 3}, behind=1)

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
