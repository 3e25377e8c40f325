"""Annotators: judges over recorded turns, through a real endpoint, resumable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clock import Forward
from tests.rollout.server import Answer, Endpoint, completion, endpoint, said
from tests.worlds import call as raw_call
from trajgym.envs import EnvSpec
from trajgym.rewards import (
    DirectiveHints,
    NextStateVotes,
    Rewards,
    Stepwise,
    TurnTable,
    VoteRewards,
)
from trajgym.rollout import (
    FakeEngine,
    OpenAIPolicy,
    PolicyRejected,
    PolicyUnavailable,
    Retry,
    ScriptedPolicy,
    TokenPolicy,
    annotate,
    call,
    collect,
    say,
)
from trajgym.rollout.annotators import Annotated, Annotator, HintJudge, VoteJudge, majority
from trajgym.rollout.engines import TokenEngine
from trajgym.trajectory import (
    InvalidInput,
    Run,
    Sampling,
    SessionTree,
    Store,
    StoreError,
    StoreLocked,
    Task,
    Turn,
)

SPEC = EnvSpec(id="test/counter")
SCRIPT = [
    say("both", call("add", n=1), call("add", n=2)),
    call("add", n=4),
    call("finish"),
]


@asynccontextmanager
async def judged_by(*answers: Answer) -> AsyncIterator[tuple[OpenAIPolicy, Endpoint]]:
    retry = Retry(tries=1)
    async with endpoint(*answers) as server:
        async with OpenAIPolicy("judge", base_url=server.url, retry=retry) as policy:
            yield policy, server


def votes(*values: str) -> list[Answer]:
    return [completion(said(f"It went well. \\boxed{{{value}}}")) for value in values]


async def recorded(out: Path, *, tasks: int = 1, exact: bool = False) -> None:
    policy = TokenPolicy.fake(SCRIPT) if exact else ScriptedPolicy(SCRIPT)
    await collect(SPEC, [Task(id=f"t{i}") for i in range(tasks)], policy, out)


def trees(out: Path) -> list[SessionTree]:
    with Run(out) as run:
        return list(run.sessions())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 1, -1], 1),
        ([-1, 0, -1], -1),
        ([1, -1], 0),
        ([1, 1, -1, -1, 0], 0),
        ([0, 0, 1], 0),
        ([None, None, 1], 1),
        ([None, None], 0),
        ([], 0),
    ],
)
def test_majority(given: Sequence[int | None], expected: int) -> None:
    """Most votes win; ties, and answers that are no votes, give 0."""
    assert majority(given) == expected


async def test_votes_reach_the_turns_that_something_followed(tmp_path: Path) -> None:
    """Each turn is judged m times through the endpoint, and the majority is in the run."""
    await recorded(tmp_path)
    answers = votes("1", "-1", "1", "-1", "x", "-1", "0", "1", "-1")
    async with judged_by(*answers) as (policy, server):
        report = await annotate(tmp_path, VoteJudge(policy), concurrency=1)
    assert (report.annotated, report.skipped, report.failed.total()) == (3, 0, 0)
    assert len(server.requests) == 9
    (tree,) = trees(tmp_path)
    found = [(turn.signals["vote"], sorted(turn.signals["votes"], key=str)) for turn in tree.turns]
    assert found == [(1, [-1, 1, 1]), (-1, [-1, -1, None]), (0, [-1, 0, 1])]
    with Run(tmp_path) as run:
        sources = {a.source for a in run.annotations(tree.record.id)}
    assert sources == {"votes:openai:judge"}
    assert len({request["seed"] for request in server.requests}) == 9


async def test_the_judge_sees_the_turn_and_all_that_followed(tmp_path: Path) -> None:
    """Task, call arguments, and the results of every tool call are in the question."""
    await recorded(tmp_path)
    async with judged_by(*votes("1")) as (policy, server):
        await annotate(tmp_path, VoteJudge(policy, votes=1), concurrency=1)
    first, second, *_ = (request["messages"][1]["content"] for request in server.requests)
    for text in ("Count to 3.", "both", 'add with {"n": 1}', 'add with {"n": 2}'):
        assert text in first
    assert "1 of 2 (tool)\nnow 1" in first
    assert "2 of 2 (tool)\nnow 3" in first
    assert "SAW LAST\nnow 3" in second


async def test_long_texts_are_cut_in_the_middle(tmp_path: Path) -> None:
    """A flood of output is shown with head, tail and how much is missing."""
    script = [raw_call(("flood", '{"size": 50000}')), call("finish")]
    await collect(SPEC, [Task(id="t")], ScriptedPolicy(script), tmp_path)
    async with judged_by(*votes("1")) as (policy, server):
        await annotate(tmp_path, VoteJudge(policy, votes=1, limit=100), concurrency=1)
    question = server.requests[0]["messages"][1]["content"]
    assert "[... 49900 characters left out ...]" in question
    assert "xZ" in question


async def test_a_turn_that_nothing_followed_is_not_judged(tmp_path: Path) -> None:
    """A last word without an answer has no next state, and gets no vote."""
    policy = ScriptedPolicy([call("add"), "I am done."])
    await collect(SPEC, [Task(id="t")], policy, tmp_path)
    async with judged_by(*votes("1")) as (judge, _):
        report = await annotate(tmp_path, VoteJudge(judge, votes=1))
    assert report.annotated == 1
    assert ["vote" in turn.signals for turn in trees(tmp_path)[0].turns] == [True, False]


async def test_what_is_annotated_is_not_asked_again(tmp_path: Path) -> None:
    """A second call makes no requests; another source judges every turn, and its signal is used."""
    await recorded(tmp_path)
    async with judged_by(*votes("1")) as (policy, server):
        await annotate(tmp_path, VoteJudge(policy, votes=1))
        again = await annotate(tmp_path, VoteJudge(policy, votes=1))
        assert (again.annotated, again.skipped, len(server.requests)) == (0, 3, 3)
    async with judged_by(*votes("-1")) as (policy, server):
        other = await annotate(tmp_path, VoteJudge(policy, votes=1, source="strict"))
    assert (other.annotated, len(server.requests)) == (3, 3)
    (tree,) = trees(tmp_path)
    assert [turn.signals["vote"] for turn in tree.turns] == [-1, -1, -1]


async def test_cancelled_and_resumed(tmp_path: Path) -> None:
    """What was found before a cancel is kept; the next call asks about the rest only."""
    await recorded(tmp_path, tasks=4)
    seen = asyncio.Event()

    def note(event: Annotated) -> None:
        seen.set()

    async with judged_by(*votes(*"1" * 4), Answer(hang=True)) as (policy, _):
        judge = VoteJudge(policy, votes=1)
        work = asyncio.create_task(annotate(tmp_path, judge, concurrency=3, on_progress=note))
        await seen.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    before = sum("vote" in turn.signals for tree in trees(tmp_path) for turn in tree.turns)
    assert 1 <= before <= 4
    async with judged_by(*votes("1")) as (policy, server):
        report = await annotate(tmp_path, VoteJudge(policy, votes=1))
    assert (report.skipped, report.annotated, len(server.requests)) == (
        before,
        12 - before,
        12 - before,
    )


async def test_a_turn_whose_judge_fails_is_asked_again(tmp_path: Path) -> None:
    """A failure of the endpoint leaves that turn without signals until the next call, by name."""
    await recorded(tmp_path)
    async with judged_by(*votes("1"), Answer(500, {}), *votes("1")) as (policy, _):
        judge = VoteJudge(policy, votes=1)
        report = await annotate(tmp_path, judge, concurrency=1)
        assert (report.annotated, report.failed.total()) == (2, 1)
        assert "PolicyUnavailable" in next(iter(report.failed))
        again = await annotate(tmp_path, judge, concurrency=1)
    assert (again.annotated, again.skipped) == (1, 2)


async def test_a_dead_endpoint_ends_the_call(tmp_path: Path) -> None:
    """After too many failures in a row, no more requests are made, and the cause is reported."""
    await recorded(tmp_path, tasks=10)
    async with judged_by(Answer(401, {"error": {"message": "bad key"}})) as (policy, server):
        with pytest.raises(PolicyUnavailable, match=r"5 consecutive turns.*bad key"):
            await annotate(tmp_path, VoteJudge(policy, votes=1), give_up=5, concurrency=1)
    assert len(server.requests) == 5


async def test_a_judge_that_hangs_has_a_deadline(tmp_path: Path, forward: Forward) -> None:
    """A turn that is not judged in time fails by name, and the others go on."""
    await recorded(tmp_path)
    async with judged_by(*votes("1"), Answer(hang=True)) as (policy, server):
        judge = VoteJudge(policy, votes=1)
        judging = asyncio.create_task(
            annotate(tmp_path, judge, seconds=100.0, concurrency=1, give_up=99)
        )
        for request in (2, 3):
            await server.received(request)
            forward(100)
        report = await judging
    assert (report.annotated, report.failed) == (1, {"TimeoutError": 2})


async def test_a_run_that_is_being_written_is_refused(tmp_path: Path) -> None:
    """A run has one writer at a time: annotate names the other one."""
    await recorded(tmp_path)
    async with Store(tmp_path), judged_by(*votes("1")) as (policy, _):
        with pytest.raises(StoreLocked):
            await annotate(tmp_path, VoteJudge(policy))
    with pytest.raises(StoreError, match="no run here"):
        await annotate(tmp_path / "nowhere", VoteJudge(ScriptedPolicy([])))


async def test_every_file_of_a_run_is_annotated(tmp_path: Path) -> None:
    """Signals of a run of two files go to the file that holds the session."""
    for shard in ("a.sqlite", "b.sqlite"):
        async with Store(tmp_path / shard) as store:
            from trajgym.rollout import Runner

            task = Task(id=shard)
            policy = ScriptedPolicy(SCRIPT)
            async with Runner(SPEC, [task], policy, store=store) as runner:
                assert len([group async for group in runner]) == 1
    async with judged_by(*votes("1")) as (policy, _):
        report = await annotate(tmp_path, VoteJudge(policy, votes=1))
    assert report.annotated == 6
    assert all(turn.signals["vote"] == 1 for tree in trees(tmp_path) for turn in tree.turns)


async def test_anybody_can_write_an_annotator(tmp_path: Path) -> None:
    """A few lines make one; what breaks in it is counted by cause and breaks nothing else."""

    class Length(Annotator):
        source = "length"

        def turns(self, tree: SessionTree) -> Sequence[Turn]:
            return tree.turns

        async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
            if turn.index == 1:
                raise KeyError("bug")
            return {"length": len(json.dumps(turn.message))}

    await recorded(tmp_path)
    report = await annotate(tmp_path, Length())
    assert (report.annotated, report.failed) == (2, {"KeyError: 'bug'": 1})
    (tree,) = trees(tmp_path)
    table = TurnTable.build([], [tree], signals=["length"])
    assert table.signal("length").known.tolist() == [True, False, True]


async def test_votes_as_advantages_and_as_step_rewards(tmp_path: Path) -> None:
    """The vote weighs its turn's tokens as it is, or is a reward that an estimator takes."""
    await recorded(tmp_path, tasks=1)
    async with judged_by(*votes("1", "-1", "0")) as (policy, _):
        await annotate(tmp_path, VoteJudge(policy, votes=1), concurrency=1)
    with Run(tmp_path) as run:
        groups, sessions = list(run.groups()), list(run.sessions())
    deriver = NextStateVotes(weight=0.5)
    assert deriver.derive(deriver.table(groups, sessions)).values.tolist() == [0.5, -0.5, 0.0]
    rewards = VoteRewards().derive(VoteRewards().table(groups, sessions))
    assert isinstance(rewards, Rewards)
    assert rewards.values.tolist() == [1.0, -1.0, 0.0]
    assert Stepwise(variant="official").derive_from(rewards).values.size == 3


HINT = "Add two instead of four: three is the target."


def hints(text: str, verdict: str = "1") -> Answer:
    return completion(said(f"<hint>{text}</hint> \\boxed{{{verdict}}}"))


async def test_the_longest_hint_that_the_judge_stands_by_is_kept(tmp_path: Path) -> None:
    """Short hints, hints that are taken back and answers without one are dropped."""
    await recorded(tmp_path)
    answers = [
        *(hints("Add two, not four."), hints(HINT), hints("x" * 99, "-1")),
        *(hints("too short"), completion(said("nothing \\boxed{-1}")), completion(said(None))),
        *(hints("0123456789"), hints("0123456789"), hints("0123456789")),
    ]
    async with judged_by(*answers) as (policy, _):
        report = await annotate(tmp_path, HintJudge(policy), concurrency=1)
    assert report.annotated == 3
    (tree,) = trees(tmp_path)
    assert [turn.signals["hint"] for turn in tree.turns] == [HINT, None, None]
    assert all("hint_gaps" not in turn.signals for turn in tree.turns)


class Spy(FakeEngine):
    """Keeps what it was asked to score."""

    prompts: list[str]

    async def score(self, prompt_ids: Any, response_ids: Any, *, sampling: Sampling) -> list[float]:
        text = self.renderer.decode(list(prompt_ids))  # type: ignore[attr-defined]
        self.prompts.append(text)
        return await super().score(prompt_ids, response_ids, sampling=sampling)


async def test_a_teacher_who_knows_the_hint_scores_what_was_sampled(tmp_path: Path) -> None:
    """Gaps are the teacher's log-probs less the recorded ones, on the very ids of the turn."""
    await recorded(tmp_path, exact=True)
    teacher = Spy(name="teacher", seed=9)
    teacher.prompts = []
    async with judged_by(hints(HINT)) as (policy, _):
        judge = HintJudge(policy, votes=1, engine=teacher, renderer=teacher.renderer)
        assert (await annotate(tmp_path, judge, concurrency=1)).annotated == 3
    assert f"Count to 3.\n\n(Hint: {HINT})<|end|>" in teacher.prompts[0]
    (tree,) = trees(tmp_path)
    for turn, prompt in zip(tree.turns, teacher.prompts, strict=True):
        assert turn.tokens is not None
        assert turn.sampling is not None
        ids = teacher.renderer._codec.encode(prompt)  # type: ignore[attr-defined]
        scored = await FakeEngine(seed=9).score(
            ids, turn.tokens.response_ids, sampling=turn.sampling
        )
        expected = np.array(scored) - turn.tokens.logprobs
        assert turn.signals["hint_gaps"] == pytest.approx(expected)
    deriver = DirectiveHints()
    values = deriver.derive(deriver.table([], [tree])).values
    assert values == pytest.approx([np.mean(t.signals["hint_gaps"]) for t in tree.turns])


async def test_log_probs_of_another_mode_are_not_compared(tmp_path: Path) -> None:
    """A teacher with raw log-probs can't judge processed ones; the turn fails by name."""
    await recorded(tmp_path, exact=True)
    teacher = FakeEngine()
    teacher.logprob_mode = "raw"
    async with judged_by(hints(HINT)) as (policy, _):
        judge = HintJudge(policy, votes=1, engine=teacher, renderer=teacher.renderer)
        report = await annotate(tmp_path, judge)
    assert report.annotated == 0
    assert all("can't be compared" in cause for cause in report.failed)


async def test_what_was_sampled_scores_as_it_was_sampled() -> None:
    """The fake engine gives ids the log-probs that it sampled them with."""
    engine = FakeEngine(seed=3)
    sampling = Sampling(temperature=1.0, seed=5)
    made = await engine.generate([1, 2, 3], sampling=sampling, max_tokens=30, stop_ids=[260])
    assert await engine.score([1, 2, 3], made.ids, sampling=sampling) == list(made.logprobs)
    assert await engine.score([1, 2, 4], made.ids, sampling=sampling) != list(made.logprobs)


async def test_engines_that_cannot_score_say_so() -> None:
    """Scoring is optional: an engine without it is refused by its name."""

    class Plain(TokenEngine):
        name = "plain"

        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(PolicyRejected, match="'plain' can't score"):
        await Plain().score([1], [2], sampling=Sampling())


def test_judges_refuse_settings_that_make_no_sense() -> None:
    """No votes, half a teacher, and a template without a place for the hint are refused."""
    policy = ScriptedPolicy([])
    with pytest.raises(InvalidInput, match="votes is 0"):
        VoteJudge(policy, votes=0)
    with pytest.raises(InvalidInput, match="give both"):
        HintJudge(policy, engine=FakeEngine())
    with pytest.raises(InvalidInput, match="lacks"):
        HintJudge(policy, template="Think!")
