"""Sessions at their limits: long, wide, slow to verify, interrupted twice, clocks set back."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.clock import Forward
from tests.worlds import Counter, call
from trajgym.envs import Budgets, Env, EnvSpec, Image, Session, ToolResult, register, tool
from trajgym.envs._execute import bound_text, content_parts
from trajgym.rollout import ScriptedPolicy, TreeExpansion, collect, run_session
from trajgym.trajectory import Run, Store, Task

COUNTER = EnvSpec(id="tests.worlds:Counter", config={"target": 10**9})
TASK = Task(id="t", prompt="")


async def test_a_session_of_two_thousand_turns(tmp_path: Path) -> None:
    """It is recorded whole, reads back whole, and can be forked near its end."""
    turns = 2_000
    budgets = Budgets(turns=turns, seconds=None, seconds_per_turn=None)
    async with Store(tmp_path) as store:
        await store.put_task(TASK)
        session = Session(COUNTER, TASK, store=store, session_id="long", budgets=budgets)
        policy = ScriptedPolicy.always(call(("add", "{}")))
        async with session:
            while not session.done:
                await session.step(call(("add", "{}")))
            rival = await session.fork(turns - 2)
            async with rival:
                await rival.step(call(("add", '{"n": 5}')))
        await policy.close()
    assert str(session.status) == str(rival.status) == "truncated:turns"
    with Run(tmp_path) as run:
        tree = run.session("long")
    assert len(tree.turns) == turns + 1
    first, second = tree.attempts
    assert [len(tree.trajectory(one)) for one in (first, second)] == [turns, turns]
    assert tree.turns[-1].observation[0]["content"] == f"now {turns + 4}"


async def test_forks_of_forks(tmp_path: Path) -> None:
    """Each fork of a fork is the same world; closing the first closes every environment."""
    closed = len(Counter.closed)
    depth = 6
    async with Store(tmp_path) as store:
        await store.put_task(TASK)
        async with Session(COUNTER, TASK, store=store, session_id="deep") as session:
            await session.step(call(("add", "{}")))
            line = [session]
            for n in range(depth):
                rival = await line[-1].fork(line[-1].turns[-1].index)
                result = await rival.step(call(("add", "{}")))
                assert result.observation[0]["content"] == f"now {n + 2}"
                line.append(rival)
    assert len(Counter.closed) - closed == depth + 1
    assert all(one.done for one in line)
    with Run(tmp_path) as run:
        tree = run.session("deep")
    assert [len(tree.trajectory(one)) for one in tree.attempts] == list(range(1, depth + 2))
    assert {str(one.status) for one in tree.attempts} == {"cancelled"}


class SlowVerdict(Env):
    """Never finishes its verification."""

    started: ClassVar[int] = 0
    ended: ClassVar[list[str]] = []
    closed: ClassVar[int] = 0
    forward: ClassVar[Forward]

    async def reset(self, task: Task, seed: int | None) -> str:
        return "go"

    async def verify(self) -> float:
        SlowVerdict.started += 1
        try:
            SlowVerdict.forward(600)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            SlowVerdict.ended.append("cancelled")
            raise
        return 1.0

    async def close(self) -> None:
        SlowVerdict.closed += 1


async def test_a_deadline_inside_verify(tmp_path: Path, forward: Forward) -> None:
    """The session's deadline ends a verification: no score, one end, and the place is free."""
    SlowVerdict.started, SlowVerdict.closed = 0, 0
    SlowVerdict.forward = forward
    SlowVerdict.ended.clear()
    spec = EnvSpec(id="tests.test_extremes:SlowVerdict")
    tasks = [Task(id=f"t{i}", prompt="") for i in range(3)]
    policy = ScriptedPolicy.always("done")
    report = await collect(spec, tasks, policy, tmp_path, concurrency=1, deadline=600)
    assert report.statuses == {"failed:deadline": 3}
    assert (SlowVerdict.started, SlowVerdict.closed) == (3, 3)
    assert SlowVerdict.ended == ["cancelled"] * 3
    with Run(tmp_path) as run:
        assert all(tree.attempts[0].outcome is None for tree in run.sessions())


async def test_own_timeouts_are_not_taken_for_deadlines() -> None:
    """A TimeoutError that reset or verify raises itself is reported with its own text."""

    class Impatient(Env):
        at = "reset"

        def reset(self, task: Task, seed: int | None) -> str:
            if self.at == "reset":
                raise TimeoutError("the database is slow")
            return "go"

        def verify(self) -> float:
            raise TimeoutError("the judge is slow")

    register("test/impatient")(Impatient)
    for at, status, text in (("reset", "env", "database"), ("verify", "verify", "judge")):
        Impatient.at = at
        session = Session(EnvSpec(id="test/impatient"), TASK)
        await run_session(session, ScriptedPolicy.always("done"), TASK)
        assert str(session.status) == f"failed:{status}"
        assert f"the {text} is slow" in session.attempt.cause


async def test_a_clock_that_goes_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall-clock time set back changes no budget and no duration, and the run reads back."""
    backwards = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 2e9 - 3600.0 * next(backwards))
    tasks = [Task(id=f"t{i}", prompt="") for i in range(3)]
    policy = ScriptedPolicy.always(call(("add", "{}")))
    await collect(
        COUNTER,
        tasks,
        policy,
        tmp_path,
        samples=2,
        budgets=Budgets(turns=4),
        expansion=TreeExpansion(),
    )
    monkeypatch.undo()
    with Run(tmp_path) as run:
        trees = list(run.sessions())
        assert all(group.sealed for group in run.groups())
    assert len(trees) == 6
    for tree in trees:
        assert {str(one.status) for one in tree.attempts} == {"truncated:turns"}
        assert all(0 <= turn.policy_seconds < 60 for turn in tree.turns)
        assert all(0 <= turn.env_seconds < 60 for turn in tree.turns)


class Stuck(Env):
    """A tool that never returns, and a close that takes minutes."""

    close_seconds: ClassVar[float] = 300.0
    budgets: ClassVar[Budgets] = Budgets(turns=3, seconds=600)

    @classmethod
    def script(cls, task: Task, sample: int) -> list[Any]:
        return [call(("look", "{}")), call(("wait", "{}"))]

    async def reset(self, task: Task, seed: int | None) -> str:
        return "go"

    @tool
    async def look(self) -> str:
        """Look around."""
        return "nothing"

    @tool
    async def wait(self) -> str:
        """Wait."""
        print("waiting", flush=True)
        await asyncio.Event().wait()
        return ""

    def verify(self) -> float:
        return 1.0

    async def close(self) -> None:
        print("closing", flush=True)
        await asyncio.Event().wait()


def test_ctrl_c_twice(tmp_path: Path) -> None:
    """While a close hangs, a second Ctrl-C ends the program; what was acknowledged is there."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "t"}\n')
    command = [
        *(sys.executable, "-m", "trajgym.cli", "collect", "--env", "tests.test_extremes:Stuck"),
        *("--tasks", str(tasks), "--out", str(tmp_path / "run"), "--samples", "1"),
    ]
    root = Path(__file__).parents[1]
    worker = subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert worker.stdout is not None
    try:
        for word in ("waiting", "closing"):
            assert any(word in line for line in worker.stdout)
            worker.send_signal(signal.SIGINT)
        said, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert worker.returncode == 130, said
    with Run(tmp_path / "run") as run:
        (tree,) = run.sessions()
    assert len(tree.turns) == 1
    assert str(tree.attempts[0].status) in {"interrupted", "cancelled"}


@pytest.mark.parametrize("size", [10_000_000, 100_000_000])
@pytest.mark.parametrize(
    "unit", ["x", "\0", "é", "e\u0301", "\U0001f600", "\udce9", "a\udce9", "\ud83d\ude00"]
)
def test_huge_results_are_not_read_to_be_bounded(unit: str, size: int) -> None:
    """A hundred million characters of any kind are never copied (benchmarks/bench_bounding.py)."""
    limit = 100_000
    text = unit * (size // len(unit))
    tracemalloc.start()
    try:
        kept = bound_text(text, limit)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4_000_000
    assert len(kept.encode()) <= limit + 100
    assert "left out" in kept


def test_texts_after_the_limit_are_left_out() -> None:
    """A thousand texts of one result are bounded together."""
    limit = 100_000
    parts = content_parts(["a" * 60_000] * 1_000, lambda _: "", limit)
    assert sum(len(part["text"]) for part in parts) <= limit + 200  # type: ignore[index]


async def test_a_huge_result_does_not_hold_up_other_sessions(tmp_path: Path) -> None:
    """A tool's hundred million characters are recorded bounded, with the mark."""

    class Huge(Env):
        def reset(self, task: Task, seed: int | None) -> str:
            return "go"

        @tool
        def flood(self) -> ToolResult:
            """Flood."""
            return ToolResult(content=["é" * 20_000_000, Image(b"png"), "b" * 20_000_000])

        @tool
        def refuse_at_length(self) -> str:
            """Raise a huge text."""
            raise ValueError("no" * 10_000_000)

        def verify(self) -> float:
            return 1.0

    register("test/huge")(Huge)
    async with Session(EnvSpec(id="test/huge"), TASK) as session:
        result = await session.step(call(("flood", "{}"), ("refuse_at_length", "{}")))
    assert "characters left out" in result.observation[0]["content"][0]["text"]
    assert sum(len(str(message)) for message in result.observation) < 400_000
