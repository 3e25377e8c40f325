"""What the time of an attempt is spent on: each moment counts once, for the innermost cause."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from trajgym.envs import Env, EnvSpec, Reply, Session, ToolResult, Waits, register, tool, waiting
from trajgym.rollout import Policy, Runner, call
from trajgym.rollout.monitoring import LiveView, exposition
from trajgym.trajectory import Run, Store, Task

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rollout import PolicyRequest

SECONDS = 0.05


@register("tests/slow-parts")
class SlowParts(Env):
    """Spends a while in each part."""

    async def reset(self, task: Task, seed: int | None) -> str:
        await asyncio.sleep(SECONDS)
        with waiting("sandbox"):
            await asyncio.sleep(2 * SECONDS)
        return "Ring."

    @tool
    def ring(self) -> ToolResult:
        """Ring."""
        with waiting("bell"):  # a plain method, in its thread
            time.sleep(SECONDS)
        return ToolResult(content="ding", done=True)

    async def verify(self) -> bool:
        with waiting("judge"):
            await asyncio.sleep(SECONDS)
        return True


class Thinking(Policy):
    """Answers after a while."""

    name = "scripted:thinking"

    async def sample(self, request: PolicyRequest) -> Reply:
        await asyncio.sleep(SECONDS)
        return Reply(message=call("ring"))


async def test_each_part_is_counted_where_it_belongs(tmp_path: Path) -> None:
    """The causes of a recorded attempt add up to its time, and the live view sums them."""
    async with Store(tmp_path) as store:
        runner = Runner(
            EnvSpec(id="tests/slow-parts"),
            [Task(id="a"), Task(id="b")],
            Thinking(),
            store=store,
            concurrency=2,
        )
        begun = time.perf_counter()
        async with runner:
            async for _ in runner:
                pass
        took = time.perf_counter() - begun
        with LiveView(tmp_path) as view:
            figures = view.update()
    with Run(tmp_path) as run:
        found = [tree.attempts[0].waits for tree in run.sessions()]
    assert len(found) == 2
    for waits in found:
        least = {
            "policy": SECONDS, "sandbox": 2 * SECONDS, "environment": SECONDS,
            "bell": SECONDS, "judge": SECONDS, "verify": 0.0, "store": 0.0,
        }  # fmt: skip
        assert waits.keys() >= least.keys()
        assert all(waits[cause] >= 0.9 * seconds for cause, seconds in least.items()), waits
        assert sum(waits.values()) <= took  # nothing is counted twice
    for cause, seconds in figures.waits.items():
        assert seconds == pytest.approx(sum(waits[cause] for waits in found))
    assert 'trajgym_run_wait_seconds_total{cause="sandbox"}' in exposition(figures)
    assert figures.idle.keys() == {"slots", "engine", "sandboxes"}
    assert all(0.0 <= share <= 1.0 for share in figures.idle.values())


async def test_causes_within_a_cause_are_taken_off() -> None:
    """Also in tasks and threads that the code starts; others' sessions are others' time."""
    mine, other = Waits(), Waits()

    def in_thread() -> None:
        with waiting("thread"):
            time.sleep(SECONDS)

    async def in_task() -> None:
        with waiting("task"):
            await asyncio.sleep(SECONDS)

    begun = time.perf_counter()
    with mine.at("outer"):
        await asyncio.create_task(in_task())
        await asyncio.to_thread(in_thread)
        with other.at("theirs"):
            await asyncio.sleep(SECONDS)
        with pytest.raises(ValueError, match="no"), waiting("broken"):
            raise ValueError("no")
    took = time.perf_counter() - begun
    assert mine.seconds.keys() == {"outer", "task", "thread", "broken"}
    assert 3 * 0.9 * SECONDS <= sum(mine.seconds.values()) <= took  # nothing is counted twice
    assert mine.seconds["outer"] >= 0.9 * SECONDS  # including the other session's
    assert other.seconds["theirs"] >= 0.9 * SECONDS


async def test_two_at_once_never_make_a_cause_negative() -> None:
    """Concurrent parts may take longer together than what contains them."""
    waits = Waits()

    async def part() -> None:
        with waiting("sandbox"):
            await asyncio.sleep(SECONDS)

    with waits.at("environment"):
        await asyncio.gather(part(), part(), part())
    assert waits.seconds["environment"] >= 0.0
    assert waits.seconds["sandbox"] >= 3 * 0.9 * SECONDS
    with waiting("nothing"):
        pass  # outside a session it has no effect
    assert waits.seconds.keys() == {"environment", "sandbox"}


async def test_a_fork_counts_its_own_time() -> None:
    """What was spent before the fork is the first attempt's."""
    async with Session(EnvSpec(id="tests/slow-parts"), Task(id="a")) as session:
        async with await session.fork(None) as rival:
            await rival.step(Reply(message=call("ring")))
        assert rival.attempt.waits["bell"] >= 0.9 * SECONDS
        assert "policy" not in rival.attempt.waits
        assert "bell" not in session.waits.seconds
