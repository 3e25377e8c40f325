"""Rubrics: what an outcome is made of, live and when a run is scored again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.server import completion, endpoint, said
from tests.rubrics import world
from tests.test_cli import run
from trajgym.envs import EnvironmentFault, EnvSpec, Session, check_env
from trajgym.envs.rubrics import Case, MissingJudgment, Rubric, RubricError
from trajgym.rollout import (
    OpenAIPolicy,
    Retry,
    ScriptedPolicy,
    annotate,
    call,
    collect,
    rescore,
    say,
)
from trajgym.rollout.annotators import RubricJudge
from trajgym.trajectory import (
    Attempt,
    InvalidInput,
    Outcome,
    Run,
    SessionRecord,
    SessionTree,
    Status,
    Store,
    Task,
    Turn,
)

TASK = Task(id="t", prompt="3 + 4?", data={"answer": 7})
SPEC = EnvSpec(id="test/summing")


def case(answer: str = "7", **facts: Any) -> Case:
    """An attempt of one turn."""
    turn = Turn(index=0, parent=None, message={"role": "assistant", "content": answer})
    attempt = Attempt(leaf=0, status=Status("completed"))
    tree = SessionTree(SessionRecord(id="s", task="t", env={"id": "e"}), [turn], [attempt])
    return Case(TASK, tree, attempt, facts)


async def test_each_part_is_reported_by_name() -> None:
    """The outcome holds every part with value and weight; the score is their weighted sum."""
    async with Session(SPEC, TASK) as session:
        await session.step(call("add", a=3, b=4))
        await session.step(say("It is 7"))
    assert session.outcome is not None
    assert (session.outcome.score, session.outcome.passed) == (1.0, True)
    parts = session.outcome.details["rubric"]["parts"]
    assert parts["right"] == {"kind": "reward", "value": 1.0, "weight": 0.75}
    assert list(parts) == ["right", "thrifty", "honest", "finished"]


async def test_a_gate_takes_the_whole_score_and_a_budget_is_seen_as_it_ends() -> None:
    """A failing gate gives 0; a check sees the status that the attempt ends with."""
    async with Session(SPEC, TASK) as session:
        await session.step(call("peek"))
        await session.step(say("7"))
    assert session.outcome is not None
    assert (session.outcome.score, session.outcome.passed) == (0.0, False)
    async with Session(SPEC, TASK) as session:
        await session.step(call("add", a=3, b=4))
        await session.truncate("turns", "enough")
    assert session.outcome is not None
    assert session.outcome.details["rubric"]["parts"]["finished"]["value"] == 0.0
    assert not session.outcome.passed


async def test_environments_with_rubrics_keep_the_contract() -> None:
    """The conformance check takes an environment that has a rubric in place of verify()."""
    await check_env(SPEC, TASK, ["7"])


async def test_a_broken_function_is_a_failure_and_no_zero() -> None:
    """The attempt ends failed:verify, and the cause names the function."""
    async with Session(SPEC, Task(id="t", data={"answer": 1, "x": 1})) as session:
        session.task.data.pop("answer")
        await session.step(say("7"))
    assert str(session.status) == "failed:verify"
    assert session.outcome is None
    assert "right" in session.attempt.cause
    assert "KeyError" in session.attempt.cause


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, [1]])
def test_values_that_are_no_finite_numbers_are_refused(value: Any) -> None:
    """No such value becomes a score."""
    rubric = Rubric()
    rubric.reward(name="odd")(lambda _: value)
    with pytest.raises(EnvironmentFault, match="odd"):
        rubric.outcome(case())


def test_a_rubric_is_refused_where_it_can_mean_two_things() -> None:
    """Names are used once, weights are finite, and no parts make no outcome."""
    rubric = Rubric("r")
    rubric.reward(name="one")(lambda _: 1.0)
    with pytest.raises(InvalidInput, match="two parts are called 'one'"):
        rubric.check(name="one")(lambda _: True)
    with pytest.raises(InvalidInput, match="finite"):
        rubric.reward(name="two", weight=math.inf)(lambda _: 1.0)
    with pytest.raises(InvalidInput, match="scale"):
        rubric.judge(scale=0)
    with pytest.raises(InvalidInput, match="no parts"):
        Rubric().outcome(case())
    with pytest.raises(InvalidInput, match="'one'"):
        rubric + rubric
    assert repr(rubric) == "Rubric('r': one)"


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=1, max_size=6))
def test_the_score_is_the_weighted_sum_in_any_order(parts: list[tuple[float, float]]) -> None:
    """The order of the parts changes no bit of the score, and scoring twice gives the same."""

    def made(order: list[tuple[float, float]]) -> Rubric:
        rubric = Rubric()
        for number, (weight, value) in enumerate(order):
            rubric.reward(name=str(number), weight=weight)(lambda _, v=value: v)
        return rubric

    one, other = made(parts), made(parts[::-1])
    score = one.outcome(case()).score
    assert score == other.outcome(case()).score == one.outcome(case()).score
    assert score == pytest.approx(sum(w * v for w, v in parts), abs=1e-9)


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.floats(0, 1))
def test_passing_needs_every_check_and_enough_score(checks: list[bool], mark: float) -> None:
    """An attempt passes if all checks hold and the score reaches the mark."""
    rubric = Rubric(passing=0.5)
    for number, holds in enumerate(checks):
        rubric.check(name=f"c{number}")(lambda _, h=holds: h)
    rubric.reward(name="mark")(lambda _: mark)
    assert rubric.outcome(case()).passed == (all(checks) and mark >= 0.5)


async def collected(out: Path, spec: EnvSpec = SPEC, samples: int = 2) -> None:
    policy = ScriptedPolicy(lambda request: world.Summing.script(TASK, request.sample)[0])
    await collect(spec, [TASK], policy, out, samples=samples)


async def test_a_run_is_scored_again_beside_its_outcomes(tmp_path: Path) -> None:
    """The same rubric gives the recorded outcomes, bit for bit; another one is kept beside them."""
    await collected(tmp_path)
    with Run(tmp_path) as found:
        before = {tree.record.id: tree.attempts[0].outcome for tree in found.sessions()}
    report = await asyncio.to_thread(rescore, tmp_path)
    assert (report.name, report.rescored, report.changed) == ("sums", 2, 0)
    report = await asyncio.to_thread(rescore, tmp_path, world.strict)
    assert (report.passed_before, report.passed, report.changed) == (2, 1, 1)
    assert report.means == (1.0, 0.5)
    with Run(tmp_path) as found:
        for tree in found.sessions():
            assert tree.attempts[0].outcome == before[tree.record.id]
            kept = found.outcomes(tree.record.id)
            assert kept["sums"] == {0: before[tree.record.id]}
            assert found.derived(tree.record.id) == {}
    with Run(tmp_path, outcomes="strict") as found:
        scores = [tree.attempts[0].outcome.score for tree in found.sessions()]  # type: ignore[union-attr]
    assert sorted(scores) == [0.0, 1.0]


async def test_a_later_session_without_the_outcome_is_not_taken_for_the_recorded_one(
    tmp_path: Path,
) -> None:
    """Two kinds of outcomes are never mixed: a session that was not scored again is refused."""
    await collected(tmp_path, samples=1)
    await asyncio.to_thread(rescore, tmp_path, world.strict)
    async with Store(tmp_path) as store, Session(SPEC, TASK, store=store) as session:
        await session.step(say("7"))
    with Run(tmp_path, outcomes="strict") as found:
        with pytest.raises(InvalidInput, match=f"{session.id}.*no outcome 'strict'"):
            list(found.sessions())


async def test_a_judge_scores_as_the_session_ends(tmp_path: Path) -> None:
    """Prompt, answer and model are recorded with the outcome; scoring again asks no model."""
    async with endpoint(completion(said("Very polite: 8"))) as server:
        judge = {"base_url": server.url, "model": "j"}
        spec = EnvSpec(id="test/judged", config={"judge": judge})
        async with Store(tmp_path) as store:
            store.put_task(TASK)
            async with Session(spec, TASK, store=store) as session:
                await session.step(say("It is 7, thank you"))
        assert len(server.requests) == 1
    assert session.outcome is not None
    assert session.outcome.score == pytest.approx(1.8)
    found = session.outcome.details["judgments"]["tone"]
    assert found["prompt"].endswith("It is 7, thank you")
    assert (found["answer"], found["value"], found["policy"]) == (
        "Very polite: 8",
        0.8,
        "openai:j",
    )
    assert (found["prompt_tokens"], found["completion_tokens"]) == (5, 2)
    report = await asyncio.to_thread(rescore, tmp_path)
    assert (report.rescored, report.changed, report.failed.total()) == (1, 0, 0)


@pytest.mark.parametrize("answer", ["no idea", "11"])
async def test_a_judge_without_a_mark_is_a_failure_and_no_zero(answer: str) -> None:
    """An answer that can't be read leaves the attempt unscored."""
    async with endpoint(completion(said(answer))) as server:
        config = {"judge": {"base_url": server.url, "model": "j"}}
        async with Session(EnvSpec(id="test/judged", config=config), TASK) as session:
            await session.step(say("7"))
        assert (str(session.status), session.outcome) == ("failed:judge", None)


async def test_a_missing_judge_is_named_before_the_first_turn(tmp_path: Path) -> None:
    """The environment can't be built, a run does not begin, and a session ends at once."""
    spec = EnvSpec(id="test/judged")
    with pytest.raises(InvalidInput, match=r"judges the rubric's parts \['tone'\].*self\.judge"):
        spec.make()
    policy = ScriptedPolicy([say("7")])
    with pytest.raises(InvalidInput, match="there is no judge"):
        await collect(spec, [TASK], policy, tmp_path / "run")
    async with Session(spec, TASK) as session:
        assert str(session.status) == "failed:env"
        assert "there is no judge" in session.attempt.cause


async def test_a_recorded_run_is_judged_and_then_scored(tmp_path: Path) -> None:
    """Without judgments nothing is scored; with them, each attempt was asked about once."""
    await collected(tmp_path)
    report = await asyncio.to_thread(rescore, tmp_path, world.polite)
    assert (report.rescored, report.failed.total()) == (0, 2)
    assert "MissingJudgment" in next(iter(report.failed))
    async with endpoint(completion(said("5"))) as server:
        for annotated in (2, 0):
            policy = OpenAIPolicy("j", base_url=server.url, retry=Retry(tries=1))
            async with RubricJudge(policy, world.polite, {TASK.id: TASK}) as judge:
                assert (await annotate(tmp_path, judge)).annotated == annotated
        assert len(server.requests) == 2
    report = await asyncio.to_thread(rescore, tmp_path, world.polite)
    assert (report.rescored, report.after) == (2, [0.5, 0.5])


def test_judged_parts_need_a_judgment() -> None:
    """The error names what is missing; a rubric without judged parts needs no judge."""
    with pytest.raises(MissingJudgment, match="tone"):
        world.polite.outcome(case())
    rubric = Rubric()
    rubric.judge(name="silent")(lambda _: "")
    with pytest.raises(RubricError, match="return the judge's prompt"):
        rubric.judged[0].prompt(case())


def test_from_the_command_line_to_rewards_of_the_new_outcomes(tmp_path: Path) -> None:
    """rescore, reward and export agree on which outcomes they use."""
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "run"
    tasks.write_text(TASK.model_dump_json() + "\n")
    run("collect", "--env", "test/summing", "--tasks", tasks, "--out", out, "--samples", 2)
    printed = run("rescore", out, "--rubric", "tests.rubrics.world:strict")
    assert "rescored 2 attempts, 1 changed; 2 passed before, 1 now" in printed
    told = json.loads(run("rescore", out, "--rubric", "tests.rubrics.world:strict", "--json"))
    assert (told["outcomes"], told["mean"]) == ("strict", 0.5)
    recorded = json.loads(run("reward", out, "--with", "outcome", "--json"))
    again = json.loads(run("reward", out, "--with", "outcome", "--outcomes", "strict", "--json"))
    assert (recorded["sum"], again["sum"]) == (2.0, 1.0)
    with pytest.raises(InvalidInput, match="can't be imported"):
        run("rescore", out, "--rubric", "tests.rubrics.world:nothing")
    printed = run("rescore", out, "--rubric", "tests.rubrics.world:polite", status=1)
    assert "not scored 2" in printed


@pytest.mark.parametrize("env", [{}, {"id": ""}, {"id": "test/summing", "cfg": 1}, {"id": 3}])
def test_a_malformed_environment_record_is_named(tmp_path: Path, env: dict[str, Any]) -> None:
    """The error of ours names session and field; a rubric that is given needs no environment."""
    record = SessionRecord(id="s1", task=TASK.id, env=env)
    with Store(tmp_path) as store:
        store.put_task(TASK)
        store.begin_session(record).wait()
        message = {"role": "assistant", "content": "<answer>7</answer>"}
        store.append_turn("s1", Turn(index=0, parent=None, message=message)).wait()
        outcome = Outcome(score=0.0, passed=False)
        ended = Attempt(status=Status("completed"), outcome=outcome, leaf=0)
        store.put_attempt("s1", ended).wait()
    with pytest.raises(InvalidInput, match=r"session s1: its environment: .*(id|cfg)"):
        rescore(tmp_path)
    with pytest.raises(InvalidInput, match=r"session s1: its environment: .*(id|cfg)"):
        run("rescore", tmp_path, "--model", "m")
    assert rescore(tmp_path, world.strict).rescored == 1
    assert "s1" in run("show", tmp_path, "s1")


@pytest.mark.parametrize(
    "details",
    [
        {"facts": 3},
        {"judgments": ["tone"]},
        {"judgments": {"tone": 1}},
        {"judgments": {"tone": {"prompt": "", "answer": "", "policy": "", "value": "high"}}},
    ],
)
def test_malformed_facts_and_judgments_are_named(details: dict[str, Any]) -> None:
    """What an outcome's details hold is read again when it is scored: its form is checked."""
    found = case()
    outcome = Outcome(score=0.0, passed=False, details=details)
    attempt = dataclasses.replace(found.attempt, outcome=outcome)
    with pytest.raises(InvalidInput, match=r"facts|judgment"):
        Case.recorded(found.task, found.tree, attempt)
