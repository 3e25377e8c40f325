"""`trajgym verify`: recorded actions, executed again in fresh environments."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from tests import test_subagents, worlds
from tests.clock import Forward
from tests.worlds import call
from trajgym.cli import app
from trajgym.envs import Budgets, Env, EnvSpec, Session, ToolResult, register, tool
from trajgym.rollout import ScriptedPolicy, TreeExpansion, collect, drive
from trajgym.rollout.verification import verify_run
from trajgym.trajectory import InvalidInput, Outcome, Run, Store, Task

COUNTER = EnvSpec(id="test/counter")  # registered by tests.worlds


@register("test/tides")
class Tides(Env):
    """What it gives depends on the weather, which is not recorded."""

    weather: ClassVar[str] = "fair"
    budgets: ClassVar[Budgets] = Budgets(turns=5, seconds=600)

    def reset(self, task: Task, seed: int | None) -> str:
        if self.weather == "frost":
            raise RuntimeError("frozen over")
        return "It is cold." if self.weather == "cold" else "Wade."

    @tool
    def wade(self, depth: int) -> ToolResult:
        """Wade in.

        Args:
            depth: how deep.
        """
        if self.weather == "storm" and depth > 1:
            raise RuntimeError("washed away")
        text = f"rain at {depth}" if self.weather == "rain" and depth > 1 else f"at {depth}"
        reward = 0.5 if self.weather == "gold" else 0.25
        return ToolResult(
            content=text, reward=reward, done=depth > 2 or (self.weather == "ebb" and depth > 1)
        )

    def verify(self) -> Outcome:
        score = 0.25 if self.weather == "cloud" else 1.0
        return Outcome(score=score, passed=score == 1.0)


@pytest.fixture
async def tides(tmp_path: Path) -> Path:
    """A run of two sessions of three turns, recorded in fair weather."""
    script = ScriptedPolicy([call(("wade", f'{{"depth": {n}}}')) for n in (1, 2, 3)])
    await collect(EnvSpec(id="test/tides"), [Task(id="t")], script, tmp_path / "run", samples=2)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("weather", "cause", "turn", "found"),
    [
        ("cold", "opening", None, "user: It is cold."),
        ("rain", "observation", 1, "tool: rain at 2"),
        ("gold", "reward", 0, "0.5"),
        ("ebb", "end", 1, "completed"),
        ("cloud", "outcome", None, "score 0.25, not passed"),
        ("storm", "error", 1, "failed:env: RuntimeError: washed away"),
        ("frost", "error", None, "failed:env: RuntimeError: frozen over"),
    ],
)
async def test_each_cause_is_found_at_its_turn(
    tides: Path,
    monkeypatch: pytest.MonkeyPatch,
    weather: str,
    cause: str,
    turn: int | None,
    found: str,
) -> None:
    """An environment that has changed is reported by cause and turn, and by nothing else."""
    equal = await verify_run(tides)
    assert (equal.attempts, equal.equal, equal.turns, equal.outcomes) == (2, 2, 6, 2)
    monkeypatch.setattr(Tides, "weather", weather)
    report = await verify_run(tides)
    assert report.equal == 0
    assert dict(report.causes) == {cause: 2}
    one, other = report.differences
    assert (one.cause, one.turn, one.found) == (cause, turn, found)
    assert other.turn == turn


async def test_random_and_forked_sessions_repeat(tmp_path: Path) -> None:
    """Seeded randomness is the same again, and each attempt of a tree is compared alone."""
    script = ScriptedPolicy(
        [call(("dice", "{}")), call(("add", '{"n": 2}'), ("look", "{}")), call(("finish", "{}"))]
    )
    await collect(
        COUNTER, [Task(id="a")], script, tmp_path, samples=2, expansion=TreeExpansion(nodes=2)
    )
    report = await verify_run(tmp_path)
    assert (report.sessions, report.attempts, report.equal, report.outcomes) == (2, 6, 6, 6)
    assert report.turns == 18  # shared turns are executed in each attempt


async def test_texts_that_never_repeat(tmp_path: Path) -> None:
    """A clock differs, unless its digits are ignored; the outcome is compared all the same."""
    script = ScriptedPolicy([call(("clock", "{}")), call(("finish", "{}"))])
    await collect(COUNTER, [Task(id="a")], script, tmp_path)
    report = await verify_run(tmp_path)
    assert dict(report.causes) == {"observation": 1}
    assert report.outcomes == 1
    assert (await verify_run(tmp_path, ignore=[r"\d+"])).equal == 1
    with pytest.raises(InvalidInput, match="regular expression"):
        await verify_run(tmp_path, ignore=["("])


async def test_ends_of_every_kind(tmp_path: Path, forward: Forward) -> None:
    """Failures of the environment repeat; ends outside of it are not compared, nor timeouts."""
    scripts: dict[str, list[Any]] = {
        "stuck": [call(("bug", "{}"))],
        "memory": [call(("use_up", "{}"))],
        "turns": [call(("add", "{}"))] * 30,
        "odd": [call(("odd_text", "{}")), call(("finish", "{}"))],
        "tired": [call(("add", "{}"))],
    }
    async with Store(tmp_path) as store:
        for name, script in scripts.items():
            task = Task(id=name)
            await store.put_task(task)
            async with Session(COUNTER, task, store=store) as session:
                if name == "tired":
                    await session.step(script[0])
                    await session.fail("policy", "no more")
                else:
                    await drive(session, ScriptedPolicy(script), task)
        worlds.Counter.gate.clear()
        async with Session(COUNTER, task, store=store, budgets=Budgets(seconds=300)) as session:
            step = asyncio.create_task(session.step(call(("pass_gate", "{}"))))
            await asyncio.to_thread(worlds.Counter.waiting.acquire, timeout=60)
            forward(300)
            await step
        worlds.Counter.gate.set()
    with Run(tmp_path) as run:
        endings = [str(one.attempts[0].status) for one in run.summaries()]
    assert endings == [
        "failed:env",
        "truncated:memory",
        "truncated:turns",
        "completed",
        "failed:policy",
        "truncated:seconds",
    ]
    report = await verify_run(tmp_path)
    assert (report.attempts, report.equal) == (5, 5)
    assert dict(report.skipped) == {"a tool call had timed out": 1}


async def test_sub_agents_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their turns are executed where they were spawned, and their answers are compared."""
    task = Task(id="t", prompt="Which is larger?")
    spec = EnvSpec(id="test/boss")
    async with Store(tmp_path) as store:
        await store.put_task(task)
        async with Session(spec, task, store=store, seed=7) as session:
            await session.step(call(("delegate", '{"work": "Measure the fox."}'), ("count", "{}")))
            scout, counter = session.spawned
            async with scout:
                await scout.step(call(("look", '{"where": "fox"}')))
                await scout.step("The fox has 3.")
            async with counter:
                await counter.step(call(("dice", "{}"), ("finish", "{}")))
            await session.join()
            await session.step(call(("stop", "{}")))
        async with Session(spec, task, store=store, seed=7) as session:
            await session.step(call(("delegate", '{"work": "Go."}')))
            (scout,) = session.spawned
            async with scout:
                await scout.fail("policy", "gone")
            await session.join()
    report = await verify_run(tmp_path)
    assert (report.attempts, report.equal, report.turns) == (2, 2, 6)
    assert list(report.partly) == ["a sub-agent has no turns, or was not spawned by a tool"]

    reset = worlds.Counter.reset
    monkeypatch.setattr(worlds.Counter, "reset", lambda self, task, _: reset(self, task, -1))
    monkeypatch.setattr(test_subagents.Boss, "verify", lambda _: 7.0)
    report = await verify_run(tmp_path)
    assert dict(report.causes) == {"observation": 1, "outcome": 1}
    assert [one.turn for one in report.differences] == [3, None]


async def test_what_can_not_be_repeated_here(tmp_path: Path) -> None:
    """A missing environment or task is a difference; what is declared so is skipped by reason."""
    done = ScriptedPolicy([call(("finish", "{}"))])
    await collect(COUNTER, [Task(id="a"), Task(id="b")], done, tmp_path / "gone")
    await collect(EnvSpec(id="test/unforkable"), [Task(id="a")], done, tmp_path / "once")
    once = [Task(id="a", data={"replayable": False})]
    await collect(COUNTER, once, done, tmp_path / "task")
    with sqlite3.connect(tmp_path / "gone" / "store.sqlite") as store:
        store.execute("DELETE FROM tasks WHERE id = 'a'")
        rows = store.execute("SELECT key, body FROM sessions").fetchall()
        for key, body in rows:
            if json.loads(body)["task"] == "b":
                body = body.replace(b"test/counter", b"test/nowhere")
                store.execute("UPDATE sessions SET body = ? WHERE key = ?", (body, key))
    store.close()
    report = await verify_run(tmp_path / "gone")
    assert dict(report.causes) == {"task": 1, "environment": 1}
    assert any("no environment 'test/nowhere'" in one.found for one in report.differences)
    for name, word in (("once", "forkable = False"), ("task", "replayable: false")):
        report = await verify_run(tmp_path / name)
        assert (report.attempts, len(report.skipped)) == (0, 1)
        assert word in next(iter(report.skipped))


async def test_a_callback_that_fails_is_raised_as_it_is(tides: Path) -> None:
    """Attempts are repeated concurrently, but their failure is not hidden in a group."""

    def on_progress(_: object) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await verify_run(tides, on_progress=on_progress)


async def test_a_share_is_the_same_each_time(tmp_path: Path) -> None:
    """A share of the sessions is chosen by seed, and nothing is out of range."""
    done = ScriptedPolicy([call(("finish", "{}"))])
    tasks = [Task(id=str(n)) for n in range(20)]
    await collect(COUNTER, tasks, done, tmp_path, samples=2)

    async def chosen(seed: int) -> list[str]:
        names: list[str] = []
        report = await verify_run(
            tmp_path, share=0.5, seed=seed, on_progress=lambda one: names.append(one.session)
        )
        assert report.sessions == len(names)
        return sorted(names)

    first = await chosen(0)
    assert 5 < len(first) < 35
    assert await chosen(0) == first != await chosen(1)
    with pytest.raises(InvalidInput, match="share is 0"):
        await verify_run(tmp_path, share=0)


async def test_a_repetition_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forward: Forward
) -> None:
    """One that does not end within its deadline is reported; the others are still compared."""
    script = ScriptedPolicy([call(("add", "{}")), call(("finish", "{}"))])
    await collect(COUNTER, [Task(id="a"), Task(id="b")], script, tmp_path)
    reset = worlds.Counter.reset

    async def hang(self: worlds.Counter, task: Task, seed: int | None) -> str:
        if task.id == "a":
            await asyncio.Event().wait()
        return reset(self, task, seed)

    monkeypatch.setattr(worlds.Counter, "reset", hang)
    monkeypatch.setattr(worlds.Counter, "cancel_seconds", 0.1)
    report = await verify_run(tmp_path, deadline=100, on_progress=lambda _: forward(100))
    assert (report.attempts, report.equal) == (2, 1)
    assert dict(report.causes) == {"deadline": 1}


async def test_the_command(tides: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`trajgym verify` counts, shows what differs, and its status is 1 if something does."""

    async def verify(*more: str) -> tuple[int, str]:
        runner = CliRunner(env={"COLUMNS": "160"})
        result = await asyncio.to_thread(runner.invoke, app, ["verify", str(tides), *more])
        return result.exit_code, result.output

    status, said = await verify()
    assert status == 0
    assert "repeated 2 attempts of 2 sessions: 2 equal, 0 different; 6 turns and 2 outcomes" in said
    monkeypatch.setattr(Tides, "weather", "rain")
    status, said = await verify()
    assert status == 1
    assert "observation differs in 2" in said
    assert "turn 1: observation\n  recorded: tool: at 2\n  found:    tool: rain at 2" in said
    status, said = await verify("--json", "--sample", "1")
    assert status == 1
    assert json.loads(said)["causes"] == {"observation": 2}
    assert json.loads(said)["differences"][0]["turn"] == 1
