"""The runner: sealed groups out of tasks, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.clock import Forward
from tests.worlds import call
from trajgym.envs import Budgets, EnvSpec, Reply
from trajgym.rollout import (
    Policy,
    PolicyRequest,
    PolicyUnavailable,
    Progress,
    Runner,
    collect,
    group_id,
)
from trajgym.trajectory import InvalidInput, Run, Store, StoreError, Task

SPEC = EnvSpec(id="test/counter")


class Adder(Policy):
    """Counts to `1 + sample`, then finishes; misbehaves where told."""

    name = "test:adder"

    def __init__(self, faults: dict[str, Any] | None = None) -> None:
        self.faults = faults or {}
        self.busy = 0
        self.asked: list[str] = []
        self.before_reply = asyncio.Event()
        self.before_reply.set()

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        self.asked.append(request.session)
        self.busy += 1
        try:
            await self.before_reply.wait()
            await asyncio.sleep(0)
        finally:
            self.busy -= 1
        fault = self.faults.get(request.task.id)
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            return Reply(message=fault)
        if request.turn == 0:
            return Reply(message=call(("add", json.dumps({"n": request.sample + 1}))))
        return Reply(message=call(("finish", "{}")))


def tasks(n: int) -> list[Task]:
    return [Task(id=f"t{i}") for i in range(n)]


async def test_groups_are_sealed_with_all_their_members(tmp_path: Path) -> None:
    """Every task gives one sealed group with its planned samples in order, in the store too."""
    async with Store(tmp_path) as store:
        runner = Runner(SPEC, tasks(3), Adder(), store=store, samples=4, concurrency=5)
        async with runner:
            sealed = [group async for group in runner]
    assert {s.group.task for s in sealed} == {"t0", "t1", "t2"}
    for group, sessions in sealed:
        assert [s.record.sample for s in sessions] == [0, 1, 2, 3]
        scores = [s.attempts[0].outcome.score for s in sessions if s.attempts[0].outcome]
        assert scores == [0.0, 0.0, 1.0, 0.0]
        assert len({s.record.seed for s in sessions}) == 1
        assert group.sealed
    with Run(tmp_path) as run:
        assert {g.id for g in run.groups() if g.sealed} == {group_id(t) for t in tasks(3)}
        assert {t.id for t in run.tasks()} == {"t0", "t1", "t2"}


async def test_concurrency_is_bounded_and_used(tmp_path: Path) -> None:
    """No more sessions than asked for run at once, and that many do."""
    running, most = set[str](), 0

    def note(event: Progress) -> None:
        nonlocal most
        if event.kind == "began":
            running.add(event.session)
        elif event.kind == "ended":
            running.discard(event.session)
        most = max(most, len(running))

    async with Store(tmp_path) as store:
        async with Runner(
            SPEC, tasks(6), Adder(), store=store, samples=2, concurrency=3, on_progress=note
        ) as runner:
            assert len([g async for g in runner]) == 6
    assert most == 3


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (PolicyUnavailable("no answer after 5 tries"), "no answer after 5 tries"),
        (KeyError("bug"), "KeyError: 'bug'"),
        ({"role": "user", "content": "?"}, "unusable reply"),
        ("", "unusable reply"),
        ({}, "unusable reply"),
    ],
)
async def test_one_bad_task_never_stops_the_run(tmp_path: Path, fault: Any, cause: str) -> None:
    """A policy that fails on one task fails that group's members by name; others are solved."""
    if fault == "":
        fault = [1]
    async with Store(tmp_path) as store:
        policy = Adder({"t1": fault})
        async with Runner(SPEC, tasks(3), policy, store=store, samples=2) as runner:
            sealed = {s.group.task: s async for s in runner}
    assert [m.left for m in sealed["t1"].group.members] == ["failed:policy"] * 2
    assert sealed["t1"].sessions == []
    assert len(sealed["t2"].sessions) == 2
    with Run(tmp_path) as run:
        failed = [s for s in run.summaries() if s.record.task == "t1"]
        assert all(cause in s.attempts[0].cause for s in failed)
        assert all(s.attempts[0].outcome is None for s in failed)


async def test_failed_samples_are_tried_again(tmp_path: Path) -> None:
    """With retries, a new session takes the place of one that failed; both stay in the group."""

    class Flaky(Adder):
        async def sample(self, request: PolicyRequest) -> Reply:
            if not any("." in name for name in self.asked) and request.sample == 0:
                self.asked.append(f"{request.session}.")
                raise PolicyUnavailable("once")
            return await super().sample(request)

    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(1), Flaky(), store=store, samples=2, retries=2) as runner:
            (sealed,) = [group async for group in runner]
    assert sorted((m.sample, m.left) for m in sealed.group.members) == [
        (0, ""),
        (0, "failed:policy"),
        (1, ""),
    ]
    assert len(sealed.sessions) == 2


async def test_broken_environment_is_recorded(tmp_path: Path) -> None:
    """An environment that can't even be reset fails its sessions, not the run."""
    spec = EnvSpec(id="test/counter", config={"break_at": "reset"})
    report = await collect(spec, tasks(2), Adder(), tmp_path, samples=2)
    assert report.statuses == Counter({"failed:env": 4})


async def test_collect_resumes_where_it_was_cancelled(tmp_path: Path) -> None:
    """Cancelled sessions are run again, finished ones are not, and each sample counts once."""
    policy = Adder()
    ended = asyncio.Event()

    def note(event: Progress) -> None:
        if event.kind == "ended" and event.status == "completed":
            ended.set()
            policy.before_reply.clear()

    work = asyncio.create_task(
        collect(SPEC, tasks(4), policy, tmp_path, samples=2, concurrency=2, on_progress=note)
    )
    await ended.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    with Run(tmp_path) as run:
        before = Counter(str(s.attempts[0].status) for s in run.summaries())
    assert before["completed"] >= 1
    assert before["running"] == 0
    again = Adder()
    report = await collect(SPEC, tasks(4), again, tmp_path, samples=2, concurrency=2)
    assert report.statuses["completed"] == 8 - before["completed"]
    with Run(tmp_path) as run:
        done = [s.record for s in run.summaries() if s.attempts[0].status.scored]
        assert Counter(r.group for r in done) == Counter({group_id(t): 2 for t in tasks(4)})
        assert len({(r.group, r.sample) for r in done}) == 8
        for group in run.groups():
            assert group.sealed
            assert len(group.counted) == 2
    third = Adder()
    assert (await collect(SPEC, tasks(4), third, tmp_path, samples=2)).sessions == 0
    assert third.asked == []


async def test_stop_begins_nothing_new(tmp_path: Path) -> None:
    """After stop, sessions under way end and the iterator ends."""
    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(50), Adder(), store=store, concurrency=2) as runner:
            async for _ in runner:
                runner.stop()
    with Run(tmp_path) as run:
        assert 1 <= len(list(run.summaries())) < 10


async def test_pause_holds_policy_calls_and_clocks(tmp_path: Path, forward: Forward) -> None:
    """While paused, no policy call begins, and the pause counts towards no deadline."""
    policy = Adder()
    async with Store(tmp_path) as store:
        budgets = Budgets(seconds_per_turn=100)
        runner = Runner(SPEC, tasks(2), policy, store=store, budgets=budgets)
        policy.before_reply.clear()
        async with runner:
            first = asyncio.ensure_future(anext(runner))
            while policy.busy < 2:
                await asyncio.sleep(0)
            runner.pause()
            forward(1000)
            policy.before_reply.set()
            await asyncio.sleep(0.1)
            asked = len(policy.asked)
            assert asked == 2
            runner.resume()
            sealed = [await first, await anext(runner)]
    assert all(s.sessions[0].attempts[0].status.kind == "completed" for s in sealed)
    assert len(policy.asked) == 4


async def test_slow_consumer_holds_the_workers_back(tmp_path: Path) -> None:
    """Sealed groups do not pile up in front of a consumer that does not take them."""
    policy = Adder()
    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(200), policy, store=store, concurrency=2) as runner:
            await anext(runner)
            async with asyncio.timeout(60):
                while not runner._ready.full():
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert len(set(policy.asked)) <= 7


async def test_store_that_fails_stops_the_run(tmp_path: Path) -> None:
    """If turns can't be kept, the run ends with that error instead of going on unrecorded."""
    async with Store(tmp_path) as store:
        async with Runner(SPEC, tasks(50), Adder(), store=store) as runner:
            await anext(runner)
            pages = store._sink._connection.execute("PRAGMA page_count").fetchone()[0]
            store._sink._connection.execute(f"PRAGMA max_page_count = {pages}")
            with pytest.raises(StoreError, match="full"):
                async for _ in runner:
                    pass


async def test_two_environments_in_one_run_are_refused(tmp_path: Path) -> None:
    """A run directory belongs to one environment spec."""
    await collect(SPEC, tasks(1), Adder(), tmp_path)
    other = EnvSpec(id="test/counter", config={"target": 9})
    with pytest.raises(InvalidInput, match="use another directory"):
        await collect(other, tasks(1), Adder(), tmp_path)


async def test_repeated_tasks_make_groups_of_their_own(tmp_path: Path) -> None:
    """A second epoch over the same task is another group."""
    await collect(SPEC, [*tasks(1), *tasks(1)], Adder(), tmp_path, samples=2)
    with Run(tmp_path) as run:
        assert len(list(run.groups())) == 2


@pytest.mark.parametrize("bad", [{"samples": 0}, {"concurrency": 0}, {"retries": -1}])
async def test_settings_out_of_range(tmp_path: Path, bad: dict[str, int]) -> None:
    """Numbers that make no sense are refused by name."""
    async with Store(tmp_path) as store:
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            Runner(SPEC, tasks(1), Adder(), store=store, **bad)  # type: ignore[arg-type]


COLLECT = """
import asyncio, signal, sys
from tests.test_runner import SPEC, Adder, tasks
from trajgym.rollout import collect

most, seen = int(sys.argv[2]), 0

def note(event):
    global seen
    if event.kind == "turn":
        print(event.session, flush=True)
        seen += 1
        if seen == most:
            signal.pause()  # the signal was sent, or is on its way

settings = {"samples": 3, "concurrency": 6, "on_progress": note}
asyncio.run(collect(SPEC, tasks(40), Adder(), sys.argv[1], **settings))
print("complete", flush=True)
"""


def test_collection_survives_sigkill_at_random_moments(tmp_path: Path) -> None:
    """Killed 20 times, a collection loses no acknowledged turn and ends with each sample once."""
    chance = random.Random(7)
    acknowledged: Counter[str] = Counter()
    killed = 0
    while True:
        wanted = chance.randint(1, 12) if killed < 20 else 0
        most = wanted and wanted + 3  # a slow test must not let the collection end
        worker = subprocess.Popen(
            [sys.executable, "-c", COLLECT, str(tmp_path), str(most)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert worker.stdout is not None
        lines: list[str] = []
        if killed < 20:
            while len(lines) < wanted and (line := worker.stdout.readline()):
                lines.append(line)
            os.kill(worker.pid, signal.SIGKILL)
            killed += 1
        lines += worker.stdout.readlines()
        worker.wait()
        worker.stdout.close()
        acknowledged.update(line.strip() for line in lines if line.endswith("\n"))
        if "complete\n" in lines:
            break
    del acknowledged["complete"]
    with Run(tmp_path) as run:
        assert run.check() == []
        for session, turns in acknowledged.items():
            assert len(run.session(session).turns) >= turns
        scored = [s.record for s in run.summaries() if s.attempts[0].status.scored]
        assert len(scored) == 120
        assert len({(r.task, r.sample) for r in scored}) == 120
        assert all(g.sealed and len(g.counted) == 3 for g in run.groups())
    assert killed == 20
