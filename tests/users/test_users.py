"""Simulated users: their turns are recorded, and no row, value or export is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout.server import completion, endpoint, said
from tests.test_cli import run
from trajgym.adapters import export
from trajgym.cli._eval import markdown
from trajgym.envs import Env, EnvSpec, Session, ToolResult, register, tool
from trajgym.envs.dialogue import RentalEnv
from trajgym.envs.users import STOP, SimulatedUser, UserBudget, UserData, UserTurn, open_user
from trajgym.rewards import GRPO, get_deriver, list_derivers
from trajgym.rollout import ScriptedPolicy, TokenPolicy, annotate, call, collect, say
from trajgym.rollout.annotators import VoteJudge
from trajgym.rollout.engines import FakeCall
from trajgym.rollout.evaluation import Price, Prices, summarize
from trajgym.trajectory import (
    Message,
    Run,
    SessionTree,
    Store,
    Task,
    Turn,
    build_rows,
)

DATA = {"instruction": "You want tea.", "lines": [{"says": f"line {i}"} for i in range(4)]}
TASK = Task(id="tea", data=DATA)
SPEC = EnvSpec(id="test/shop-talk")


@register("test/shop-talk")
class ShopTalk(Env):
    """A user who talks; a tool that the agent may call."""

    task_data = UserData

    def __init__(self, user: Any = None, user_turns: int | None = None) -> None:
        self._setting, self._most = user, user_turns
        self.sold = False

    async def reset(self, task: Task, seed: int | None) -> str:
        who, budget = open_user(self._setting, UserData.of(task))
        if self._most is not None:
            budget = UserBudget(turns=self._most)
        self.user = SimulatedUser(self, who, budget)
        return await self.user.answer(None)

    async def respond(self, message: Message) -> ToolResult:
        answer = await self.user.answer(str(message["content"]))
        return ToolResult(content=answer.replace(STOP, "").strip(), done=STOP in answer)

    @tool
    def sell(self) -> str:
        """Sell the tea."""
        self.sold = True
        return "sold"

    def verify(self) -> bool:
        return self.sold


def talk(asked: FakeCall) -> Any:
    """Sells in some samples; says four things in all."""
    if asked.turn == 1 and ((asked.seed or 0) >> 7) % 2:
        return call("sell")
    return say(f"agent {asked.turn}")


async def collected(out: Path, policy: Any = None, samples: int = 4, **more: Any) -> None:
    await collect(SPEC, [TASK], policy or TokenPolicy.fake(talk), out, samples=samples, **more)


def trees(out: Path) -> list[SessionTree]:
    with Run(out) as found:
        return list(found.sessions())


def without_users(tree: SessionTree) -> SessionTree:
    """The same session as if the user had not been recorded."""
    place = {t.index: i for i, t in enumerate(t for t in tree.turns if not t.simulated)}
    data = tree.to_json()
    data["turns"] = [turn for turn in data["turns"] if turn["index"] in place]
    for turn in data["turns"]:
        turn.pop("returns", None)
        turn["index"] = place[turn["index"]]
        turn["parent"] = None if turn["parent"] is None else place[turn["parent"]]
    for attempt in data["attempts"]:
        attempt["leaf"] = place[attempt["leaf"]]
    return SessionTree.from_json(data)


async def test_turns_of_the_user_stand_in_the_record_where_they_were_said(tmp_path: Path) -> None:
    """Turns have authors and an order, and each side's own conversation."""
    await collected(tmp_path, ScriptedPolicy([say("a"), say("b"), say("c"), say("d")]), samples=1)
    (tree,) = trees(tmp_path)
    assert [turn.agent for turn in tree.turns] == ["user", "main"] * 4 + ["user"]
    agents = [turn for turn in tree.turns if not turn.simulated]
    assert [turn.returns for turn in agents] == [[0], [2], [4], [6]]
    assert [turn.parent for turn in agents] == [None, 1, 3, 5]
    last = tree.turns[-1]
    assert last.message["content"] == STOP
    assert [m["content"] for m in tree.conversation(last)] == [
        "line 0", "a", "line 1", "b", "line 2", "c", "line 3", "d", STOP,
    ]  # fmt: skip
    assert [m["role"] for m in tree.conversation(agents[-1])] == ["user", "assistant"] * 4
    assert tree.trajectory(tree.attempts[0]) == agents
    assert SessionTree.from_json(tree.to_json()) == tree


async def test_rows_are_those_of_the_agent_alone(tmp_path: Path) -> None:
    """The same rows as if no user had been recorded; nothing is named as left out."""
    await collected(tmp_path)
    for tree in trees(tmp_path):
        assert tree.exact
        users = {turn.index for turn in tree.turns if turn.simulated}
        for sides in (False, True):
            made, dropped = build_rows(tree, sides=sides)
            (row,), (alone,) = made, build_rows(without_users(tree), sides=sides).rows
            assert dropped == []
            assert not users & set(row.turns)
            assert np.array_equal(row.input_ids, alone.input_ids)
            assert np.array_equal(row.loss_mask, alone.loss_mask)
            text = "".join(map(str, row.input_ids[row.loss_mask]))
            assert text


@pytest.mark.parametrize("name", list_derivers())
async def test_derivers_give_the_same_values_and_users_nothing(name: str, tmp_path: Path) -> None:
    """Each deriver: the agent's values don't change by a bit, a user's turn has 0."""
    await collected(tmp_path)
    with Run(tmp_path) as found:
        groups, sessions = list(found.groups()), list(found.sessions())
    for turn in (turn for tree in sessions for turn in tree.turns if not turn.simulated):
        turn.signals |= {"value": turn.index / 8, "vote": 1, "certificate_score": 1.0}
    deriver = get_deriver(name)
    values = deriver.derive(deriver.table(groups, sessions))
    alone = deriver.derive(deriver.table(groups, map(without_users, sessions)))
    for tree in sessions:
        own = [not turn.simulated for turn in tree.turns]
        given = values.of(tree.record.id)
        assert np.array_equal(given[own], alone.of(tree.record.id)), name
        assert not given[np.logical_not(own)].any(), name
        assert deriver.missing(tree) == deriver.missing(without_users(tree))


async def test_grpo_rows_hold_advantages_on_the_agents_turns(tmp_path: Path) -> None:
    """From a group with mixed outcomes: one row a session, advantages on the agent's turns."""
    await collected(tmp_path / "run", samples=6)
    with Run(tmp_path / "run") as found:
        groups, sessions = list(found.groups()), list(found.sessions())
    assert len({tree.attempts[0].outcome.score for tree in sessions}) == 2  # type: ignore[union-attr]
    grpo = GRPO()
    values = [grpo.derive(grpo.table(groups, sessions))]
    report = export(
        "trl-grpo", sessions, groups, tmp_path / "out", values=values, allow=["synthetic"]
    )
    assert report.written == 6
    assert report.dropped == []


@pytest.mark.parametrize("to", ["sft", "rows", "preference"])
async def test_exports_have_no_turn_of_the_user(to: str, tmp_path: Path) -> None:
    """No line is the user's conversation, and none of its turns is counted."""
    await collected(tmp_path / "run", samples=6)
    with Run(tmp_path / "run") as found:
        sessions, groups = list(found.sessions()), list(found.groups())
    settings = {"include": "all"} if to == "sft" else {}
    if to == "rows":
        grpo = GRPO()
        more = {"values": [grpo.derive(grpo.table(groups, sessions))], "allow": ["synthetic"]}
        settings |= more  # type: ignore[arg-type]
    report = export(to, sessions, groups, tmp_path / "out", **settings)
    assert report.written == (1 if to == "preference" else 6)
    users = {(t.record.id, turn.index) for t in sessions for turn in t.turns if turn.simulated}
    for file in report.files:
        if file.suffix != ".jsonl":
            continue
        for line in map(json.loads, file.read_text().splitlines()):
            turns = line.get("turns", [line.get("turn")])
            assert not users & {(line["session"], turn) for turn in turns}
            assert line.get("agent", "main") == "main"


async def test_judges_are_not_asked_about_the_user(tmp_path: Path) -> None:
    """An annotator that judges what was followed sees the agent's turns only."""
    await collected(tmp_path, samples=1)
    judge = VoteJudge(ScriptedPolicy.always(say("\\boxed{1}")), votes=1)
    (tree,) = trees(tmp_path)
    asked = judge.turns(tree)
    assert asked
    assert all(not turn.simulated for turn in asked)
    assert (await annotate(tmp_path, judge)).annotated == len(asked)


async def test_a_budget_of_the_user_ends_the_attempt_scored(tmp_path: Path) -> None:
    """An agent that never ends the dialogue is truncated by the user's budget, and verified."""
    spec = EnvSpec(id=SPEC.id, config={"user_turns": 2})
    async with Session(spec, TASK) as session:
        await session.step("a")
        await session.step("b")
    assert str(session.status) == "truncated:user_turns"
    assert session.outcome is not None
    assert sum(turn.simulated for turn in session.tree.turns) == 2
    async with endpoint(completion(said("more"))) as server:
        user = {"base_url": server.url, "model": "u", "tokens": 10}
        async with Session(EnvSpec(id=SPEC.id, config={"user": user}), TASK) as session:
            for _ in range(2):
                await session.step("again?")
    assert str(session.status) == "truncated:user_tokens"  # 7 tokens a call
    assert len(server.requests) == 2


async def test_costs_of_the_user_are_counted_apart(tmp_path: Path) -> None:
    """An evaluation reports the agent's tokens and the user's, each at its model's price."""
    async with endpoint(completion(said("hm")), completion(said(STOP))) as server:
        user = {"base_url": server.url, "model": "u"}
        spec = EnvSpec(id=SPEC.id, config={"user": user})
        await collect(spec, [TASK], ScriptedPolicy([say("a")]), tmp_path, samples=1)
    prices = Prices({"u": Price(1_000_000, 0), "script": Price(5, 5)})
    with Run(tmp_path) as found:
        summary = summarize([found], prices=prices)
    (group,) = summary.groups
    assert (group.prompt_tokens, group.user_tokens, group.user_cost) == (0, 14, 10.0)
    assert "simulated users, 14 tokens, 10.00 USD" in markdown(summary, {}, prices)
    assert group.turns == [1]
    shown = run("show", tmp_path, found_id(tmp_path))
    assert shown.index("hm") < shown.index(STOP)
    assert "openai:u" in shown or "user" in shown
    assert json.loads(run("stats", tmp_path, "--json"))["all"]["turns"] == 1


def found_id(out: Path) -> str:
    return trees(out)[0].record.id


@pytest.mark.parametrize("every", [0, 1])
async def test_forks_share_the_user_up_to_their_turn(tmp_path: Path, every: int) -> None:
    """A fork's user continues from the shared turn; replayed turns are not stored twice."""
    task = RentalEnv.load_tasks("builtin")[0]
    spec = EnvSpec(id="dialogue-rental")
    async with Store(tmp_path) as store:
        async with Session(spec, task, store=store, snapshot_every=every) as session:
            first = (await session.step("Your address, please?")).observation
            shared = session.turns[-1].index
            await session.step("And why?")
            before = len(session.tree.turns)
            async with await session.fork(shared) as rival:
                assert len(session.tree.turns) == before
                assert rival.messages[-1:] == first
                await rival.step("Goodbye.")
            async with await session.fork(None) as fresh:
                await fresh.step("Hello.")
    (tree,) = trees(tmp_path)
    users = [turn for turn in tree.turns if turn.simulated]
    assert [(turn.attempt, turn.edge) for turn in users[:3]] == [(0, "continue")] * 3
    mine = [turn for turn in users if turn.attempt == 1]
    assert (mine[0].edge, mine[0].parent) == ("alternative", users[1].index)
    other = next(t for t in tree.turns if t.attempt == 1 and not t.simulated)
    assert other.returns == [users[1].index]
    own = next(t for t in tree.turns if t.attempt == 2 and not t.simulated)
    assert own.returns == [users[0].index]


async def test_a_failing_user_leaves_no_turn_and_no_score() -> None:
    """A user that breaks ends the attempt as its part's failure."""
    spec = EnvSpec(id=SPEC.id, config={"user": f"{__name__}:silent"})
    async with Session(spec, TASK) as session:
        assert str(session.status) == "failed:user"
    assert (session.outcome, session.tree.turns) == (None, [])


async def test_a_noted_turn_that_is_no_json_is_the_environments_failure(tmp_path: Path) -> None:
    """The agent's turn stays in the record; the attempt ends failed:env."""
    spec = EnvSpec(id=SPEC.id, config={"user": f"{__name__}:odd"})
    async with Store(tmp_path) as store, Session(spec, TASK, store=store) as session:
        await session.step("a")
    assert str(session.status) == "failed:env"
    (tree,) = trees(tmp_path)
    assert [turn.agent for turn in tree.turns] == ["user", "main"]


def odd(data: UserData) -> Any:
    """A user whose second turn can't be written."""

    class Odd:
        async def say(self, conversation: Any) -> UserTurn:
            tokens: Any = object() if conversation else None
            return UserTurn("hm", "own:odd", sampling=tokens)

    return Odd()


def silent(data: UserData) -> Any:
    """A user that says nothing."""

    class Silent:
        async def say(self, conversation: Any) -> UserTurn:
            return UserTurn(" ", "own:silent")

    return Silent()


def test_turns_of_old_runs_have_no_users() -> None:
    """A record without a role is the agent's."""
    turn = Turn(index=0, parent=None, message={"role": "assistant", "content": ""})
    assert not turn.simulated
