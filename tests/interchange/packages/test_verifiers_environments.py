"""Environments of the real `verifiers` package, played by sessions."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import call
from trajgym.adapters.interchange import import_run
from trajgym.envs import EnvSpec, Session, tools_of
from trajgym.rollout import Runner, ScriptedPolicy
from trajgym.trajectory import InvalidInput, Run, Store, Task, text_of

pytestmark = pytest.mark.interchange
verifiers = pytest.importorskip("verifiers")
if not hasattr(verifiers, "load_environment"):
    pytest.skip("verifiers 0.4 has no load_environment(name)", allow_module_level=True)

WORLDS = "tests.interchange.packages.verifiers_worlds"


def spec_of(kind: str, **more: Any) -> EnvSpec:
    args = {"kind": kind, **more}
    return EnvSpec(id="verifiers", config={"environment": WORLDS, "args": args})


def task_of(spec: EnvSpec, index: int = 1) -> Task:
    return spec.resolve().load_tasks("train")[index]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def test_a_single_turn_is_scored_by_the_rubric() -> None:
    """The prompt is verifiers' own; the score is the weighted sum of the rubric's rewards."""
    spec = spec_of("single")
    for answer, score in (("2", 1.5), ("It is 2.", 1.0), ("no", 0.5), ("It is three.", 0.0)):
        async with Session(spec, task_of(spec)) as session:
            assert [one["role"] for one in session.messages] == ["system", "user"]
            assert [text_of(one) for one in session.messages] == ["Be brief.", "1 + 1?"]
            done = await session.step(said(answer))
            assert done.done
            assert str(session.status) == "completed"
            outcome = session.outcome
            assert outcome is not None
            assert (outcome.score, outcome.passed) == (score, score >= 1)
            assert outcome.details["metrics"]["right"] == float("2" in answer)
            assert outcome.details["metrics"]["num_turns"] == 1.0
            assert outcome.details["stop_condition"] == "max_turns_reached"


async def test_turns_alternate_until_the_environment_ends() -> None:
    """The environment's answers are observations, its last one too; the rubric sees its state."""
    spec = spec_of("multi")
    async with Session(spec, task_of(spec, 2)) as session:
        seen = [await session.step(said(text)) for text in ("one", "9", "4")]
        assert [text_of(one.observation[0]) for one in seen] == [
            "a number\n\nplease",
            "lower",
            "found",
        ]
        assert str(session.status) == "completed"
        assert session.outcome is not None
        assert session.outcome.score == 1.0
        assert session.outcome.details["metrics"]["guesses"] == 3.0
        assert session.outcome.details["stop_condition"] == "has_final_env_response"


async def test_limits_of_either_side_truncate_and_are_scored() -> None:
    """Verifiers' max_turns, and a session's budget, end the rollout; the rubric still applies."""
    spec = spec_of("multi", max_turns=2)
    async with Session(spec, task_of(spec)) as session:
        await session.step(said("9"))
        await session.step(said("8"))
        assert str(session.status) == "truncated:turns"
        assert session.outcome is not None
        assert session.outcome.details["stop_condition"] == "max_turns_reached"
    spec = spec_of("multi")
    budgets = spec.resolve().budgets.__class__(turns=1)
    async with Session(spec, task_of(spec), budgets=budgets) as session:
        await session.step(said("9"))
        assert str(session.status) == "truncated:turns"
        assert session.outcome is not None
        assert session.outcome.score == 0.0
        assert session.outcome.details["metrics"]["guesses"] == 1.0
        assert session.outcome.details["stop_condition"] == "prompt_too_long"


async def test_tools_are_the_environments() -> None:
    """Parallel calls, a failing tool, malformed arguments, an unknown tool, then an answer."""
    spec = spec_of("tools")
    tools = tools_of(spec.resolve())
    assert list(tools) == ["add", "fail"]
    parameters: Any = tools["add"].schema["function"]["parameters"]
    assert parameters["properties"]["x"]["type"] == "integer"
    async with Session(spec, task_of(spec)) as session:
        seen = await session.step(
            call(("add", '{"x": 1, "y": 1}'), ("gone", "{}"), ("add", '{"x": 2, "y": 3}'))
        )
        assert [text_of(one) for one in seen.observation] == ["2", "'gone'", "5"]
        seen = await session.step(call(("fail", "{}"), ("add", "{")))
        assert text_of(seen.observation[0]) == "no luck"
        assert "property name" in text_of(seen.observation[1])
        await session.step(said("2"))
        assert str(session.status) == "completed"
        assert session.outcome is not None
        assert session.outcome.score == 1.5
        metrics = session.outcome.details["metrics"]
        assert metrics["total_tool_calls"] == 5.0
        assert metrics["add_calls"] == 3.0


async def test_failures_of_the_environment_are_not_scores() -> None:
    """An exception, and an error that verifiers' loop keeps in its state."""
    spec = spec_of("multi")
    for text, cause in (("crash", "the table broke"), ("infra", "the sandbox is gone")):
        async with Session(spec, task_of(spec)) as session:
            await session.step(said(text))
            assert str(session.status) == "failed:env"
            assert cause in session.attempt.cause
            assert session.outcome is None


async def test_a_fork_replays_to_the_same_state() -> None:
    """A rival attempt has a rollout of its own, brought to the same place."""
    spec = spec_of("multi")
    async with Session(spec, task_of(spec, 2)) as session:
        await session.step(said("9"))
        async with await session.fork(0) as rival:
            await rival.step(said("4"))
            assert rival.outcome is not None
            assert rival.outcome.details["metrics"]["guesses"] == 2.0
        await session.step(said("4"))
        assert session.outcome is not None
        assert session.outcome.score == 1.0


async def test_a_run_of_a_data_set(tmp_path: Path) -> None:
    """Concurrent attempts share the environment, and each has its own state."""
    spec = spec_of("multi", max_turns=5)
    tasks = spec.resolve().load_tasks("eval")
    assert [task.prompt for task in tasks] == ["0 + 0?", "1 + 1?", "2 + 2?"]
    policy = ScriptedPolicy([said(text) for text in ("3", "0", "2", "4")])
    async with Store(tmp_path / "run") as store:
        async with Runner(spec, tasks, policy, store=store, samples=3, concurrency=9) as runner:
            groups = [group async for group in runner]
    assert len(groups) == 3
    with Run(tmp_path / "run") as run:
        outcomes = [tree.attempts[0].outcome for tree in run.sessions()]
    guesses = [one.details["metrics"]["guesses"] for one in outcomes if one is not None]
    assert sorted(guesses) == [2.0] * 3 + [3.0] * 3 + [4.0] * 3
    assert all(one is not None and one.passed for one in outcomes)


def test_wrong_settings_are_named() -> None:
    """Unknown environments and arguments, and rubrics that compare; signals stay the caller's."""
    before = signal.getsignal(signal.SIGTERM)
    for config, words in (
        ({}, "set environment"),
        ({"environment": "no-such-environment"}, "no-such-environment"),
        ({"environment": WORLDS, "args": {"kind": "odd"}}, "no kind 'odd'"),
        ({"environment": WORLDS, "args": {"kind": "group"}}, "compares the rollouts"),
    ):
        with pytest.raises(InvalidInput, match=words):
            EnvSpec(id="verifiers", config=config).make()
    with pytest.raises(InvalidInput, match="nowhere"):
        spec_of("single").resolve().load_tasks("nowhere.jsonl")
    spec_of("single").make()
    assert signal.getsignal(signal.SIGTERM) is before


class Canned(verifiers.clients.Client):  # type: ignore[misc, name-defined, unused-ignore]
    """Gives the same answers in every rollout."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers

    async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
        turn = sum(one.role == "assistant" for one in prompt)
        return verifiers.types.Response(
            id="r", created=0, model=model, usage=None, message=self.answers[turn]
        )

    async def close(self) -> None:
        return

    setup_client = to_native_tool = to_native_prompt = close
    get_native_response = raise_from_native_response = from_native_response = close


def answer_of(text: str, *calls: tuple[str, str]) -> Any:
    made = [
        verifiers.types.ToolCall(id=f"c{index}", name=name, arguments=arguments)
        for index, (name, arguments) in enumerate(calls)
    ]
    return verifiers.types.ResponseMessage(
        content=text, tool_calls=made or None, finish_reason="stop", is_truncated=False
    )


async def test_results_that_verifiers_writes_are_imported(tmp_path: Path) -> None:
    """results.jsonl and metadata.json of an evaluation: messages, calls, tools, rewards."""
    made = verifiers.load_environment(WORLDS, kind="tools")
    client = Canned([answer_of("", ("add", '{"x": 1, "y": 1}')), answer_of("2")])
    files = tmp_path / "files"
    await made.evaluate(
        client=client,
        model="m",
        num_examples=2,
        rollouts_per_example=2,
        results_path=files,
        save_results=True,
        state_columns=[],
    )
    report = import_run("verifiers", files, tmp_path / "run")
    assert (report.sessions, report.turns) == (4, 8)
    with Run(tmp_path / "run") as run:
        trees = list(run.sessions())
    for tree in trees:
        first, last = tree.turns
        assert first.message["tool_calls"][0]["function"]["name"] == "add"
        assert text_of(first.observation[0]) == "2"
        assert text_of(last.message) == "2"
        assert [one["function"]["name"] for one in tree.record.tools] == ["add", "fail"]
        assert first.policy == "imported:m"
    scores = [tree.attempts[0].outcome.score for tree in trees if tree.attempts[0].outcome]
    assert sorted(scores) == [0.5, 0.5, 1.5, 1.5]
