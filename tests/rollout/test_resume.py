"""Resuming a run: failed samples are tried again, and other questions are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.server import Answer, completion, endpoint, said
from tests.worlds import Counter, call
from trajgym.envs import Budgets, EnvSpec, Reply
from trajgym.rollout import (
    OpenAIPolicy,
    Policy,
    PolicyRequest,
    Runner,
    ScriptedPolicy,
    TreeExpansion,
    collect,
)
from trajgym.trajectory import InvalidInput, Run, Sampling, Store, Task

SPEC = EnvSpec(id="test/counter")
TASKS = [Task(id="a", prompt="Count!"), Task(id="b", data={"to": [3, {"of": 4}]})]
REFUSED = Answer(401, {"error": {"message": "Incorrect API key provided: sk-1234567890"}})


def answer(request: PolicyRequest) -> dict[str, Any]:
    said = sum(message["role"] == "assistant" for message in request.messages)
    assert request.task is not None
    return Counter.script(request.task, request.sample)[said]


class Moody(Policy):
    """Fails at the sessions it is told to fail at; everything else follows the script."""

    def __init__(self, fails: int) -> None:
        self.name = "moody"
        self.fails = fails
        self.calls = 0

    async def sample(self, request: PolicyRequest) -> Reply:
        if request.turn == 0 and self.fails > 0:
            self.fails -= 1
            raise RuntimeError(f"no luck {self.fails}")
        return Reply(message=answer(request))


async def test_a_wrong_key_spoils_no_run(tmp_path: Path) -> None:
    """Every sample fails with a wrong key; the same call with the right one runs them all again."""
    good = completion(said(None, tool_calls=[call(("finish", "{}"))["tool_calls"][0]]))
    async with endpoint(*[REFUSED] * 4, good) as server:
        async with OpenAIPolicy("m", base_url=server.url) as policy:
            first = await collect(SPEC, TASKS, policy, tmp_path, samples=2, concurrency=2)
            second = await collect(SPEC, TASKS, policy, tmp_path, samples=2, concurrency=2)
            third = await collect(SPEC, TASKS, policy, tmp_path, samples=2, concurrency=2)
    assert first.statuses == {"failed:policy": 4}
    assert first.failed_tasks == ["a", "b"]
    ((cause, count),) = first.causes.items()
    assert (count, "Incorrect API key" in cause) == (4, True)
    assert second.statuses == {"completed": 4}
    assert (second.again, second.failed_tasks, second.causes) == (4, [], {})
    assert third.sessions == 0
    with Run(tmp_path) as run:
        for group in run.groups():
            assert group.sealed
            assert len(group.members) == 4
            assert sorted(m.sample for m in group.counted) == [0, 1]


async def test_failed_samples_can_be_left(tmp_path: Path) -> None:
    """``keep_failed`` runs nothing again, and still reports the tasks that failed."""
    await collect(SPEC, TASKS[:1], Moody(1), tmp_path)
    report = await collect(SPEC, TASKS[:1], Moody(0), tmp_path, keep_failed=True)
    assert (report.sessions, report.failed_tasks) == (0, ["a"])


async def test_trying_again_is_bounded(tmp_path: Path) -> None:
    """A sample that fails at every call is left after ``max_tries`` sessions."""
    sessions = []
    for _ in range(4):
        report = await collect(SPEC, TASKS[:1], Moody(9), tmp_path, retries=1, max_tries=4)
        sessions.append(report.sessions)
    assert sessions == [2, 2, 0, 0]
    ((cause, count),) = report.causes.items()
    assert (count, cause.startswith("failed:policy: RuntimeError: no luck")) == (4, True)


class Waiting(Moody):
    """Says that it was asked, and never answers."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked = asyncio.Event()

    async def sample(self, request: PolicyRequest) -> Reply:
        self.asked.set()
        await asyncio.Event().wait()
        return await super().sample(request)


async def test_what_cuts_a_session_uses_up_no_try(tmp_path: Path) -> None:
    """A sample that failed once and was cancelled twice has one of its two tries left."""
    await collect(SPEC, TASKS[:1], Moody(1), tmp_path, max_tries=2)
    for _ in range(2):
        policy = Waiting()
        running = asyncio.create_task(collect(SPEC, TASKS[:1], policy, tmp_path, max_tries=2))
        async with asyncio.timeout(120):
            await policy.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    report = await collect(SPEC, TASKS[:1], Moody(0), tmp_path, max_tries=2)
    assert report.statuses == {"completed": 1}


async def test_a_sample_that_failed_beside_good_ones_is_tried_again(tmp_path: Path) -> None:
    """Only the failed sample runs; its group is sealed again with it."""
    first = await collect(SPEC, TASKS, Moody(1), tmp_path, samples=3, concurrency=1)
    assert first.statuses == {"failed:policy": 1, "completed": 5}
    assert first.failed_tasks == []
    second = await collect(SPEC, TASKS, Moody(0), tmp_path, samples=3, concurrency=1)
    assert (second.sessions, second.again, second.groups) == (1, 1, 1)
    with Run(tmp_path) as run:
        assert all(g.sealed and len(g.counted) == 3 for g in run.groups())


def openai(**sampling: Any) -> OpenAIPolicy:
    return OpenAIPolicy("m", base_url="http://127.0.0.1:9/v1", sampling=Sampling(**sampling))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "budgets": (
        {"budgets": Budgets(turns=9, seconds=600, seconds_per_turn=300)},
        "budgets.turns 20",
    ),
    "seed": ({"seed": 1}, "seed 0, not 1"),
    "expansion": ({"expansion": TreeExpansion()}, "expansion null, not"),
    "policy": ({"policy": ScriptedPolicy(answer, name="b")}, 'policy.name "scripted:a", not'),
    "tasks": (
        {"tasks": [TASKS[0], Task(id="b", data={"to": [3, {"of": 5}]})]},
        "task 'b': data.to [3, {\"of\": 4}], not",
    ),
}


@pytest.mark.parametrize("part", CHANGES)
async def test_another_question_is_refused_by_name(part: str, tmp_path: Path) -> None:
    """What differs from the earlier call is named and refused, unless it is wanted."""
    changed, message = CHANGES[part]
    given: dict[str, Any] = {"tasks": TASKS, "policy": ScriptedPolicy(answer, name="a")}
    await collect(SPEC, out=tmp_path, **given)
    with pytest.raises(InvalidInput, match="would be mixed") as caught:
        await collect(SPEC, out=tmp_path, **(given | changed))
    assert message in str(caught.value)
    assert f"--allow-changes {part}" in str(caught.value)
    same = await collect(SPEC, out=tmp_path, **given)
    assert same.sessions == 0
    await collect(SPEC, out=tmp_path, **(given | changed), allow_changes=[part])
    again = await collect(SPEC, out=tmp_path, **(given | changed))
    assert again.sessions == 0
    with pytest.raises(InvalidInput, match="unknown name 'colour'"):
        await collect(SPEC, out=tmp_path, **given, allow_changes=["colour"])


@pytest.mark.parametrize("part", CHANGES)
async def test_a_runner_refuses_as_well(part: str, tmp_path: Path) -> None:
    """A runner whose store holds a run compares what it is asked for, tasks as it reads them."""
    changed, message = CHANGES[part]
    given: dict[str, Any] = {"tasks": TASKS, "policy": ScriptedPolicy(answer, name="a")}

    async def run(asked: dict[str, Any], allowed: list[str]) -> int:
        async with (
            Store(tmp_path) as store,
            Runner(SPEC, store=store, allow_changes=allowed, **asked) as runner,
        ):
            return len([sealed async for sealed in runner])

    async def one_by_one(tasks: list[Task]) -> AsyncIterator[Task]:
        for task in tasks:
            yield task

    assert await run(given, []) == 2
    asked = given | changed
    asked["tasks"] = one_by_one(asked["tasks"])
    with pytest.raises(InvalidInput, match="would be mixed") as caught:
        await run(asked, [])
    assert message in str(caught.value)
    assert await run(given | changed, [part]) == 0


async def test_temperature_and_model_are_the_policys_identity(tmp_path: Path) -> None:
    """Sampling settings count, where the endpoint is does not."""
    await collect(SPEC, [], openai(temperature=1.0), tmp_path)
    with pytest.raises(InvalidInput, match=r"policy\.sampling\.temperature 1\.0, not 0\.5"):
        await collect(SPEC, [], openai(temperature=0.5), tmp_path)
    elsewhere = OpenAIPolicy(
        "m", base_url="http://127.0.0.1:10/v1", sampling=Sampling(temperature=1.0)
    )
    await collect(SPEC, [], elsewhere, tmp_path)


async def test_tasks_of_a_generator_are_compared_as_well(tmp_path: Path) -> None:
    """Tasks that are read as they are needed are refused when their turn comes."""
    policy = ScriptedPolicy(answer, name="a")
    await collect(SPEC, TASKS, policy, tmp_path)
    with pytest.raises(InvalidInput, match="task 'a': prompt"):
        await collect(SPEC, (t for t in [Task(id="a", prompt="Other")]), policy, tmp_path)
    more = await collect(SPEC, [*reversed(TASKS), Task(id="c")], policy, tmp_path)
    assert more.sessions == 1


async def test_runs_without_a_fingerprint_are_resumed(tmp_path: Path) -> None:
    """A run that an older version collected is adopted by the first call."""
    policy = ScriptedPolicy(answer, name="a")
    await collect(SPEC, TASKS, policy, tmp_path)
    async with Store(tmp_path) as store:
        await store.set_meta("fingerprint", "null")
    assert (await collect(SPEC, TASKS, policy, tmp_path, seed=5)).sessions == 0
    with pytest.raises(InvalidInput, match="seed 5, not 6"):
        await collect(SPEC, TASKS, policy, tmp_path, seed=6)
