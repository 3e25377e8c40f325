"""Sub-agents: conversations, budgets and tools of their own, answers that return as results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.worlds import call
from trajgym.adapters import export, group_rows
from trajgym.envs import (
    Budgets,
    Env,
    EnvSpec,
    Session,
    Spawn,
    ToolResult,
    Unforkable,
    register,
    tool,
)
from trajgym.rollout import SealedGroup, TokenPolicy, collect
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import InvalidInput, Outcome, Run, SessionTree, Store, Task, build_rows

TASK = Task(id="t", prompt="Which is larger?")
EDGES = [("continue", "main"), ("spawn", "scout"), ("continue", "main")]


@register("test/boss")
class Boss(Env):
    """Hands work to others: to agents on its own tools, or in an environment of theirs."""

    budgets: ClassVar[Budgets] = Budgets(turns=4, seconds=600)
    opened: ClassVar[list[str]] = []

    def reset(self, task: Task, seed: int | None) -> str:
        del seed
        self.looks: list[str] = []
        self.opened.append(task.id)
        return task.prompt or "Go."

    @tool
    def delegate(self, work: str, tools: list[str] | None = None) -> ToolResult:
        """Hand work to a helper.

        Args:
            work: what to do.
            tools: which tools it may use.
        """
        names = ("look",) if tools is None else tuple(tools)
        return ToolResult(
            spawn=Spawn(prompt=work, agent="scout", tools=names, budgets=Budgets(turns=2))
        )

    @tool
    def count(self) -> ToolResult:
        """Let somebody count in a world of their own."""
        return ToolResult(spawn=Spawn(env=EnvSpec(id="test/counter"), agent="counter"))

    @tool
    def look(self, where: str) -> ToolResult:
        """Look at something.

        Args:
            where: at what.
        """
        self.looks.append(where)
        return ToolResult(content=f"{where} is {len(where)} long", reward=0.5)

    @tool
    def stop(self) -> ToolResult:
        """End the episode."""
        return ToolResult(content="over", done=True)

    def verify(self) -> float:
        return float(len(self.looks))


def boss() -> EnvSpec:
    return EnvSpec(id="test/boss")


def last(messages: Any) -> str:
    return str(messages[-1]["content"])


async def test_an_answer_returns_as_the_result_of_the_call(tmp_path: Path) -> None:
    """A helper works on the parent's environment; its last message is the call's result."""
    async with Store(tmp_path) as store, Session(boss(), TASK, store=store) as session:
        first = await session.step(
            call(("delegate", '{"work": "Measure the fox."}'), ("look", '{"where": "owl"}'))
        )
        assert first.observation == []
        (scout,) = session.spawned
        assert scout.agent == "scout"
        async with scout:
            assert scout.messages == [{"role": "user", "content": "Measure the fox."}]
            assert [t["function"]["name"] for t in scout.tools] == ["look"]
            await scout.step(call(("look", '{"where": "fox"}')))
            await scout.step("The fox has 3.")
            assert scout.done
        joined = await session.join()
        assert [m["content"] for m in joined.observation] == ["The fox has 3.", "owl is 3 long"]
        assert not session.done
        await session.step("Neither.")
        tree, messages = session.tree, session.messages
    with Run(tmp_path) as run:
        stored = run.session(session.id)
    assert [t.index for t in stored.turns] == [0, 1, 2, 3]
    assert [(t.parent, t.edge, t.agent) for t in tree.turns] == [
        (None, "continue", "main"),
        (0, "spawn", "scout"),
        (1, "continue", "scout"),
        (0, "continue", "main"),
    ]
    assert tree.turns[3].returns == [2]
    assert tree.conversation(tree.turns[3]) == messages
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert tree.attempts[0].leaf == 3
    outcome = session.outcome
    assert outcome is not None
    assert outcome.score == 2.0


async def test_helpers_with_an_environment_of_their_own() -> None:
    """It opens what its own environment opens with, and is not verified."""
    async with Session(boss(), TASK) as session:
        await session.step(call(("count", "{}"), ("count", "{}")))
        one, two = session.spawned
        assert [one.agent, two.agent] == ["counter", "counter-2"]
        for child in (one, two):
            async with child:
                assert last(child.messages) == "Count to 3."
                await child.step(call(("finish", "{}")))
                assert child.done
                assert child.outcome is None
        joined = await session.join()
        assert len(joined.observation) == 2
        await session.step("Done.")
        assert session.tree.turns[-1].returns == [1, 2]


async def test_a_helper_is_bounded_by_its_own_budgets() -> None:
    """A helper that uses up its turns returns its last message and a note; the parent continues."""
    async with Session(boss(), TASK) as session:
        await session.step(call(("delegate", '{"work": "Look for ever."}')))
        (scout,) = session.spawned
        async with scout:
            await scout.step(call(("look", '{"where": "a"}')))
            await scout.step(call(("look", '{"where": "b"}')))
            assert str(scout.status) == "truncated:turns"
        joined = await session.join()
        assert last(joined.observation) == "[scout ended early: truncated:turns]"
        assert not session.done


async def test_what_is_not_allowed() -> None:
    """Stepping over open helpers, joining too early, other tools and forks are refused."""
    async with Session(boss(), TASK) as session:
        await session.step(call(("delegate", '{"work": "Look."}')))
        (scout,) = session.spawned
        with pytest.raises(InvalidInput, match="call join"):
            await session.step("Never mind.")
        with pytest.raises(InvalidInput, match="have not ended"):
            await session.join()
        async with scout:
            await scout.step(call(("stop", "{}")))
            await scout.step("It ends here.")
        assert scout.turns[0].calls[0].status == "invalid"
        await session.join()
        with pytest.raises(InvalidInput, match="waits for no sub-agent"):
            await session.join()
        with pytest.raises(Unforkable, match="spawned 'scout'"):
            await session.fork(0)
        rival = await session.fork(None)
        async with rival:
            await rival.step("Mine.")
    async with Session(boss(), TASK) as session:
        await session.step(call(("delegate", '{"work": "x", "tools": ["fly"]}')))
        assert str(session.status) == "failed:env"
        assert "no tools ['fly']" in session.attempt.cause


async def test_a_failed_helper_fails_the_attempt() -> None:
    """A failure is not an answer: the attempt fails by the helper's part."""
    async with Session(boss(), TASK) as session:
        await session.step(call(("delegate", '{"work": "Look."}')))
        (scout,) = session.spawned
        async with scout:
            await scout.fail("policy", "the engine is gone")
        await session.join()
        assert str(session.status) == "failed:policy"
        assert "scout" in session.attempt.cause


async def test_a_tool_of_the_parent_can_end_the_episode() -> None:
    """If a helper's call ends the episode, the attempt ends with the helper."""
    async with Session(boss(), TASK) as session:
        await session.step(call(("delegate", '{"work": "Stop.", "tools": ["stop"]}')))
        (scout,) = session.spawned
        async with scout:
            await scout.step(call(("stop", "{}")))
        assert (await session.join()).done
        assert str(session.status) == "completed"


async def test_a_loop_can_spawn_by_itself() -> None:
    """session.spawn adds a helper that no tool asked for; its answer is a user message."""
    async with Session(boss(), TASK) as session:
        with pytest.raises(InvalidInput, match="after a turn"):
            session.spawn(Spawn(prompt="Too early."))
        await session.step(call(("look", '{"where": "owl"}')))
        critic = session.spawn(Spawn(prompt="Criticise.", agent="critic"))
        async with critic:
            await critic.step("Look again.")
        joined = await session.join()
        assert joined.observation == [{"role": "user", "content": "Look again."}]
        await session.step("I did.")
        tree = session.tree
    assert [m["role"] for m in tree.conversation(tree.turns[2])] == [
        "user", "assistant", "tool", "user", "assistant",
    ]  # fmt: skip
    assert tree.turns[2].returns == [1]


async def test_a_refused_spawn_leaves_the_session_as_it_was() -> None:
    """A sub-agent with tools that there are not is refused, and the agent's next turn is taken."""
    async with Session(boss(), TASK) as session:
        await session.step(call(("look", '{"where": "here"}')))
        with pytest.raises(InvalidInput, match="no tools"):
            session.spawn(Spawn(prompt="Fly.", tools=("fly",)))
        assert session.spawned == []
        await session.step(call(("stop", "{}")))
    assert str(session.status) == "completed"


async def test_collected_helpers_are_trained_and_exported(tmp_path: Path) -> None:
    """`collect` runs helpers by the same policy; every turn of theirs has ids, value and export."""

    def said(given: FakeCall) -> Any:
        if given.session.endswith("/scout"):
            return f"The fox has {given.session[0]}."
        if given.turn == 0:
            return call(("delegate", '{"work": "Measure the fox."}'))
        return "The fox." if given.seed and given.seed % 2 else "The owl is larger, I think."

    report = await collect(boss(), [TASK], TokenPolicy.fake(said), tmp_path, samples=2)
    assert report.statuses == {"completed": 2}
    with Run(tmp_path) as run:
        trees, groups = list(run.sessions()), list(run.groups())
    for tree in trees:
        assert [(t.edge, t.agent) for t in tree.turns] == EDGES
        assert tree.turns[2].returns == [1]
        assert last(tree.context(tree.turns[2])).startswith("The fox has")
        helper, agent = build_rows(tree).rows[::-1]
        assert {int(i) for i in helper.turn_ids if i >= 0} == {1}
        assert {int(i) for i in agent.turn_ids if i >= 0} == {0, 2}
    (group,) = groups
    trees = [replace_score(tree, float(i)) for i, tree in enumerate(trees)]
    rows = group_rows(SealedGroup(group, trees), "grpo", allow=["synthetic"]).rows
    gains = sorted({(round(float(row.advantage[row.loss_mask][0]), 3)) for row in rows})
    assert len(rows) == 4
    assert gains[0] < 0 < gains[1]  # the outcome's advantage is also the sub-agents'
    export("sft", trees, groups, tmp_path / "sft")
    (out,) = (tmp_path / "sft").glob("*.jsonl")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(line["agent"] for line in lines) == ["main", "scout"]  # the solved sample's


def replace_score(tree: SessionTree, score: float) -> SessionTree:
    (attempt,) = tree.attempts
    return replace(
        tree, attempts=[replace(attempt, outcome=Outcome(score=score, passed=score > 0))]
    )
