"""Admission: how far collection may be ahead of the trainer, and what it hands over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.fleet import SPEC as STEPS
from tests.rollout.fleet import policy as steps_policy
from tests.rollout.fleet import tasks as steps_tasks
from tests.rollout.versions import Versioned
from tests.test_runner import SPEC, Adder, tasks
from trajgym.envs import Reply
from trajgym.rollout import PolicyRequest, Runner, RunSettings
from trajgym.rollout.fleet import Fleet
from trajgym.rollout.rules import Admission, Capacity
from trajgym.trajectory import InvalidInput, Run, Store, Task


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"batch": 0}, "batch is 0; it must be an integer of at least 1"),
        ({"batch": 1, "staleness": -1}, "staleness is -1"),
        ({"batch": 1, "running": 0}, "running is 0"),
        ({"batch": True}, "batch is True"),
    ],
)
def test_bad_rules_are_refused(bad: dict[str, Any], said: str) -> None:
    """A rule out of range names the value; so does a mapping with an unknown field."""
    with pytest.raises(InvalidInput, match=said):
        Admission(**bad)
    with pytest.raises(InvalidInput, match="admission has no 'size'"):
        RunSettings.of({"admission": {"size": 1}})
    assert RunSettings.of({"admission": {"batch": 2}}).admission == Admission(batch=2)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 3),
    eta=st.integers(0, 3),
    running=st.none() | st.integers(1, 4),
    concurrency=st.integers(1, 8),
    first=st.integers(0, 3),
)
def test_a_runner_is_never_further_ahead(
    batch: int, eta: int, running: int | None, concurrency: int, first: int
) -> None:
    """At each version at most (eta + version + 1) * batch groups have begun; all are used."""
    rule = Admission(batch=batch, staleness=eta, running=running)
    seen: list[str] = []

    async def train(folder: Path) -> None:
        async with Store(folder / "run.sqlite") as store:
            runner = Runner(
                SPEC,
                tasks(4 * batch),
                Adder(),
                store=store,
                concurrency=concurrency,
                admission=rule,
                on_progress=lambda e: seen.append(e.task) if e.kind == "began" else None,
            )
            runner.set_version(first)
            async with runner:
                for step in range(4):
                    for _ in range(batch):
                        assert len(seen) <= (eta + step + 1) * batch
                        assert running is None or runner.capacity.running <= running
                        await anext(runner)
                    # It waits for the version now: whatever time passes, no more are begun.
                    for _ in range(20):
                        await asyncio.sleep(0)
                    assert len(seen) <= (eta + step + 1) * batch
                    runner.set_version(first + step + 1)
                assert [one async for one in runner] == []

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(train(Path(folder)))
    assert len(seen) == len(set(seen)) == 4 * batch


async def test_rejected_groups_make_room(tmp_path: Path) -> None:
    """A group without a member that counts takes no place of a batch: another one is begun."""
    policy = Adder({"t0": KeyError("bug"), "t2": KeyError("bug")})
    rule = Admission(batch=2)
    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(6), policy, store=store, admission=rule) as runner:
            first = [await anext(runner) for _ in range(4)]
            counted = [one.group.task for one in first if one.sessions]
            assert sorted(counted) == ["t1", "t3"]
            capacity = runner.capacity
            assert (capacity.accepted, capacity.rejected, capacity.left(0)) == (2, 2, 0)
            runner.set_version(1)
            assert sorted([one.group.task async for one in runner]) == ["t4", "t5"]


async def test_a_fleet_is_never_further_ahead(tmp_path: Path) -> None:
    """The bound holds over the processes together, and each version admits the next batch."""
    began: set[str] = set()
    rule = Admission(batch=3, staleness=1)
    async with Fleet(
        STEPS,
        steps_tasks(12),
        steps_policy,
        tmp_path,
        samples=2,
        concurrency=16,
        admission=rule,
        on_progress=lambda e: began.add(e.task) if e.kind == "began" else None,
    ) as fleet:
        for version in range(4):
            for _ in range(3):
                assert len(began) <= (1 + version + 1) * 3
                await anext(fleet)
            await fleet.set_version(version + 1)
        assert [one async for one in fleet] == []
        assert (fleet.capacity.accepted, fleet.capacity.running) == (12, 0)
    assert len(began) == 12


@pytest.mark.parametrize("kind", ["runner", "fleet"])
async def test_members_that_are_too_old_on_delivery_have_left(kind: str, tmp_path: Path) -> None:
    """Staleness counts from the oldest token, at the version at which the trainer gets a group."""
    todo = [Task(id="old", data={"versions": [0, 3]}), Task(id="new", data={"versions": [3, 3]})]
    options: dict[str, Any] = {"samples": 2, "concurrency": 1, "max_staleness": 2}
    found = {}
    if kind == "runner":
        async with Store(tmp_path) as store:
            async with Runner(SPEC, todo, Versioned(), store=store, **options) as runner:
                while runner._ready.qsize() < 1:
                    await asyncio.sleep(0.01)
                runner.set_version(5)  # after sealing, before delivery
                found = {one.group.task: one async for one in runner}
    else:
        async with Fleet(SPEC, todo, Versioned, tmp_path, processes=1, **options) as fleet:
            while not fleet._ready:
                await asyncio.sleep(0.01)
            await fleet.set_version(5)
            found = {one.group.task: one async for one in fleet}
    assert [m.left for m in found["old"].group.members] == ["stale"] * 2
    assert found["old"].sessions == []
    assert [m.left for m in found["new"].group.members] == ["", ""]
    with Run(tmp_path) as run:
        left = {g.task: [m.left for m in g.members] for g in run.groups()}
    assert left == {"old": ["stale"] * 2, "new": ["", ""]}


async def test_of_groups_that_are_ready_the_first_begun_is_delivered_first(tmp_path: Path) -> None:
    """A long group is not overtaken once it is sealed: it does not get older behind short ones."""
    go = asyncio.Event()

    class Slow(Adder):
        async def sample(self, request: PolicyRequest) -> Reply:
            if request.task is not None and request.task.id == "t0":
                await go.wait()
            return await super().sample(request)

    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(4), Slow(), store=store, concurrency=4) as runner:
            async with asyncio.timeout(60):
                for ready in (3, 4):
                    while runner._ready.qsize() < ready:
                        await asyncio.sleep(0.01)
                    go.set()
                order = [one.group.task async for one in runner]
    assert order == ["t0", "t1", "t2", "t3"]


def test_capacity_without_a_rule_admits_everything() -> None:
    """Without a rule there is no bound, whatever was begun."""
    capacity = Capacity(None)
    for _ in range(1000):
        capacity.begin()
    assert capacity.left(0) is None
    assert capacity.admits(0)
