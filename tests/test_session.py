"""Sessions: every turn is recorded, every ending named, every fork has the same state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clock import Forward
from tests.worlds import PNG, Counter, Snapshots, call
from trajgym.envs import (
    Budgets,
    EnvSpec,
    ForkDiverged,
    InvalidArguments,
    Reply,
    Sampled,
    Session,
    SessionEnded,
    Unforkable,
    UnknownEnv,
)
from trajgym.trajectory import Attempt, InvalidInput, Run, Segment, Store, Task

TASK = Task(id="t1")


def counter(**config: Any) -> EnvSpec:
    return EnvSpec(id="test/counter", config=config)


async def test_completed_session(tmp_path: Path) -> None:
    """Rewards, results, signals and outcome of a solved task are all in the store."""
    async with Store(tmp_path) as store:
        async with Session(counter(), TASK, store=store, session_id="s") as session:
            assert session.messages == [{"role": "user", "content": "Count to 3."}]
            await session.step(call(("add", '{"n": 2}'), ("add", "{}")))
            assert not session.done
            result = await session.step(call(("finish", "{}")))
            assert result.done
        assert str(session.status) == "completed"
    with Run(tmp_path) as run:
        tree = run.session("s")
    assert [t.reward for t in tree.turns] == [0.2, 1.0]
    assert [m["content"] for m in tree.turns[0].observation] == ["now 2", "now 3"]
    assert [m["tool_call_id"] for m in tree.turns[0].observation] == ["c0", "c1"]
    assert tree.turns[0].signals == {"n": 3}
    outcome = tree.attempts[0].outcome
    assert outcome is not None
    assert (outcome.score, outcome.passed) == (1.0, True)
    assert tree.record.seed is not None
    assert tree.context(tree.turns[1])[0]["content"] == "Count to 3."


async def test_turn_is_durable_before_its_observation_is_returned(tmp_path: Path) -> None:
    """When step returns, another reader already finds the turn."""
    async with Store(tmp_path) as store, Session(counter(), TASK, store=store) as session:
        for n in range(1, 4):
            await session.step(call(("add", "{}")))
            with Run(tmp_path) as run:
                assert len(run.session(session.id).turns) == n


@pytest.mark.parametrize(
    ("name", "arguments", "status", "text"),
    [
        ("nope", "{}", "invalid", "unknown tool 'nope'; available: add"),
        ("add", "{", "invalid", "invalid arguments for add"),
        ("add", '{"n": "many"}', "invalid", "n: Input should be a valid integer"),
        ("add", '{"m": 1}', "invalid", "m: Extra inputs"),
        ("parse", "{}", "invalid", "text: Field required"),
        ("parse", '{"text": "x"}', "error", "invalid literal"),
        ("refuse", "{}", "error", "I will not"),
    ],
)
async def test_bad_call_is_answered(name: str, arguments: str, status: str, text: str) -> None:
    """An invalid call gets an error result with the reason, and the session continues."""
    async with Session(counter(), TASK) as session:
        result = await session.step(call((name, arguments)))
        assert text in result.observation[0]["content"]
        assert session.turns[0].calls[0].status == status
        assert not session.done


async def test_calls_after_the_end_are_recorded_as_not_executed() -> None:
    """A message that ends the episode in the middle keeps all its calls."""
    async with Session(counter(), TASK) as session:
        await session.step(call(("add", "{}"), ("finish", "{}"), ("add", "{}")))
        assert [c.status for c in session.turns[0].calls] == ["ok", "ok", "not_executed"]
        assert session.turns[0].observation[2]["content"].startswith("Not executed")
        assert session.outcome is not None
        assert session.outcome.score == 0.0


async def test_concurrent_calls_overlap_and_keep_their_order() -> None:
    """Calls of a concurrent tool wait for each other; the results stay in place."""
    async with Session(counter(), TASK) as session:
        async with asyncio.timeout(60):
            result = await session.step(call(("meet", "{}"), ("meet", "{}"), ("add", "{}")))
        assert [m["content"] for m in result.observation] == ["met", "met", "now 1"]


@pytest.mark.parametrize(
    ("tool", "status", "cause"),
    [
        ("bug", "failed:env", "AttributeError: typo"),
        ("lose_sandbox", "failed:sandbox", "container is gone"),
    ],
)
async def test_fault_in_a_tool_is_never_a_score(tool: str, status: str, cause: str) -> None:
    """A broken environment ends the attempt with a cause, the turn kept and no outcome."""
    async with Session(counter(), TASK) as session:
        await session.step(call((tool, "{}"), ("add", "{}")))
        assert (str(session.status), session.outcome) == (status, None)
        assert cause in session.attempt.cause
        assert tool in session.attempt.error
        assert [c.status for c in session.turns[0].calls] == ["error", "not_executed"]
        with pytest.raises(SessionEnded, match=status):
            await session.step("more")


@pytest.mark.parametrize(
    ("where", "status"),
    [("reset", "failed:env"), ("verify", "failed:verify"), ("close", "completed")],
)
async def test_fault_around_the_turns(where: str, status: str) -> None:
    """A broken reset or verify is a failure; a broken close changes nothing."""
    async with Session(counter(break_at=where), TASK) as session:
        if not session.done:
            await session.step(call(("finish", "{}")))
    assert str(session.status) == status
    assert (session.outcome is not None) == (status == "completed")


async def test_slow_reset_and_slow_verify_have_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that hangs fails by name when its deadline passes."""
    monkeypatch.setattr(Counter, "reset_seconds", 0.05)
    async with Session(counter(break_at="slow reset"), TASK) as session:
        assert str(session.status) == "failed:env"
        assert "0.05 s" in session.attempt.cause
    monkeypatch.undo()
    monkeypatch.setattr(Counter, "verify_seconds", 0.05)
    async with Session(counter(break_at="slow verify"), TASK) as session:
        await session.step(call(("finish", "{}")))
        assert str(session.status) == "failed:verify"


@pytest.mark.parametrize(
    ("budgets", "message", "status"),
    [
        (Budgets(turns=1), call(("add", '{"n": 3}')), "truncated:turns"),
        (
            Budgets(seconds_per_turn=0.05),
            call(("wait", '{"seconds": 60}')),
            "truncated:seconds_per_turn",
        ),
        (Budgets(seconds=0.05), call(("block", '{"seconds": 2}')), "truncated:seconds"),
        (Budgets(), call(("use_up", "{}")), "truncated:memory"),
    ],
)
async def test_used_up_budget_is_scored(budgets: Budgets, message: Any, status: str) -> None:
    """What the agent brought on itself is named, verified and scored."""
    async with Session(counter(), TASK, budgets=budgets) as session:
        await session.step(message)
    assert str(session.status) == status
    assert session.outcome is not None
    assert session.outcome.passed == (status == "truncated:turns")


async def test_timed_out_call_is_recorded() -> None:
    """The call that ran out of time and those behind it are in the turn."""
    Counter.gate.clear()
    async with Session(counter(), TASK, budgets=Budgets(seconds_per_turn=0.05)) as session:
        with session.clock.hold():  # the first call has ended when the second one waits
            calls = call(("add", "{}"), ("pass_gate", "{}"), ("add", "{}"))
            step = asyncio.create_task(session.step(calls))
            await asyncio.to_thread(Counter.waiting.acquire, timeout=60)
        await step
        with pytest.raises(Unforkable, match="turn 0 was stopped when the time ran out"):
            await session.fork(0)
    Counter.gate.set()
    assert [c.status for c in session.turns[0].calls] == ["ok", "timeout", "not_executed"]


async def test_slow_policy_uses_the_agents_time() -> None:
    """A policy that does not answer in time ends the attempt, scored."""

    async def never() -> Reply:
        await asyncio.sleep(60)
        raise AssertionError

    async with Session(counter(), TASK, budgets=Budgets(seconds_per_turn=0.05)) as session:
        assert await session.ask(never()) is None
    assert str(session.status) == "truncated:seconds_per_turn"
    assert session.outcome is not None


async def test_held_clock_stands_still(forward: Forward) -> None:
    """Engine pauses do not count, also against a deadline that is already running."""
    async with Session(counter(), TASK, budgets=Budgets(seconds_per_turn=100)) as session:

        async def paused() -> Reply:
            with session.clock.hold():
                forward(1000)
                await asyncio.sleep(0.01)
            return Reply(message={"role": "assistant", "content": "hi"}, paused_seconds=0)

        reply = await session.ask(paused())
        assert reply is not None
        assert session.clock.used < 100


async def test_token_budgets() -> None:
    """Completion tokens are counted over turns, and a response cut at its limit ends it."""

    def reply(n: int, finish: str = "stop") -> Reply:
        sampled = Sampled(
            prompt_ids=[1], response_ids=[5] * n, logprobs=[-1.0] * n, segments=(Segment(n, 0, 0),)
        )
        return Reply(message=call(("add", "{}")), sampled=sampled, finish=finish)

    budgets = Budgets(completion_tokens=10, completion_tokens_per_turn=8)
    async with Session(counter(), TASK, budgets=budgets) as session:
        assert session.limits.completion_tokens == 8
        await session.step(reply(6))
        assert session.limits.completion_tokens == 4
        await session.step(reply(4))
        assert str(session.status) == "truncated:completion_tokens"
    async with Session(counter(), TASK, budgets=budgets) as session:
        await session.step(reply(8, "length"))
        assert str(session.status) == "truncated:completion_tokens_per_turn"
        assert session.turns[0].calls[0].status == "not_executed"


async def test_observations_are_bounded_and_valid() -> None:
    """10 MB of output and invalid Unicode become a bounded, marked, storable observation."""
    async with Session(counter(), TASK, budgets=Budgets(observation_bytes=1000)) as session:
        result = await session.step(call(("flood", '{"size": 10000000}'), ("odd_text", "{}")))
        flood = result.observation[0]["content"]
        assert len(flood) < 1100
        assert flood.startswith("Ax")
        assert flood.endswith("xZ")
        assert "9999000 bytes left out" in flood
        assert result.observation[1]["content"] == "bad \ufffd end\x00"


async def test_images_are_kept_once_by_hash(tmp_path: Path) -> None:
    """A screenshot is a hash in the message and bytes in the store."""
    async with Store(tmp_path) as store, Session(counter(), TASK, store=store) as session:
        result = await session.step(call(("look", "{}")))
        await session.step(call(("look", "{}")))
        url = result.observation[0]["content"][1]["image_url"]["url"]
        with Run(tmp_path) as run:
            assert run.blob(url.removeprefix("blob:")).data == PNG
        assert list(session.images.values()) == [PNG]


@pytest.mark.parametrize(
    "garbage",
    [None, 7, [], {}, {"role": "user", "content": "x"}, {"role": "assistant", "content": 3}],
)
async def test_garbage_is_refused_and_nothing_is_lost(garbage: Any) -> None:
    """A message that is not an assistant message is refused, and the attempt continues."""
    async with Session(counter(), TASK) as session:
        with pytest.raises(InvalidInput):
            await session.step(garbage)
        assert session.turns == []
        await session.step(call(("finish", "{}")))
        assert str(session.status) == "completed"


async def test_free_text_environment() -> None:
    """An environment that overrides respond talks without tools."""
    async with Session(EnvSpec(id="test/echo"), TASK) as session:
        result = await session.step("one")
        assert result.observation == [{"role": "user", "content": "you said one"}]
        await session.step("stop")
    assert session.outcome is not None
    assert session.outcome.passed


async def test_message_without_calls_ends_by_default() -> None:
    """In a tool environment, a plain message ends the attempt."""
    async with Session(counter(), TASK) as session:
        await session.step("I am done.")
    assert str(session.status) == "completed"


async def test_leaving_early_and_by_exception_is_named() -> None:
    """The reason for leaving stands in the record, and the environment is closed."""
    Counter.closed.clear()
    async with Session(counter(), TASK, session_id="early") as session:
        pass
    assert str(session.status) == "cancelled"
    with pytest.raises(RuntimeError):
        async with Session(counter(), TASK, session_id="boom") as session:
            raise RuntimeError("caller's bug")
    assert str(session.status) == "failed:caller"
    assert Counter.closed == ["early", "boom"]


async def test_cancelled_task_closes_the_environment(tmp_path: Path) -> None:
    """Cancelling in the middle of a tool records the end and closes the environment."""
    Counter.closed.clear()
    async with Store(tmp_path) as store:

        async def work() -> None:
            async with Session(counter(), TASK, store=store, session_id="c") as session:
                await session.step(call(("add", "{}")))
                started.set()
                await session.step(call(("wait", '{"seconds": 60}')))

        started = asyncio.Event()
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert Counter.closed == ["c"]
    with Run(tmp_path) as run:
        tree = run.session("c")
    assert str(tree.attempts[0].status) == "cancelled"
    assert len(tree.turns) == 1


async def test_cancelled_at_any_await_is_never_left_open(tmp_path: Path) -> None:
    """Wherever the cancellation lands, a session that reached the store has an end there."""

    async def work(name: str) -> None:
        async with Session(counter(), TASK, store=store, session_id=name) as session:
            await session.step(call(("add", "{}")))
            await session.step(call(("finish", "{}")))

    async with Store(tmp_path) as store:
        for steps in range(40):
            task = asyncio.create_task(work(f"s{steps}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        with Run(tmp_path) as run:
            endings = {str(s.attempts[0].status) for s in run.summaries()}
    assert endings <= {"completed", "cancelled"}
    assert "cancelled" in endings


async def test_blocking_tool_delays_only_its_own_session() -> None:
    """A plain tool that blocks its thread leaves the loop and other sessions free."""
    Counter.gate.clear()
    async with Session(counter(), TASK) as slow, Session(counter(), TASK) as quick:
        blocked = asyncio.create_task(slow.step(call(("pass_gate", "{}"))))
        await asyncio.to_thread(Counter.waiting.acquire, timeout=60)
        for _ in range(5):
            await quick.step(call(("add", "{}")))
        assert not blocked.done()
        Counter.gate.set()
        await blocked


async def test_unknown_environment_and_settings() -> None:
    """A spec that can't be built is an error with the reason."""
    with pytest.raises(UnknownEnv, match=r"known: .*test/counter"):
        Session(EnvSpec(id="nope"), TASK)
    with pytest.raises(UnknownEnv, match="can't be imported"):
        Session(EnvSpec(id="no.such:Thing"), TASK)
    async with Session(EnvSpec(id="tests.worlds:Counter", config={"wrong": 1}), TASK) as session:
        assert "invalid configuration" in session.attempt.cause
    assert issubclass(InvalidArguments, Exception)


async def test_wrong_uses_are_said() -> None:
    """A session that was not entered, and arguments of other types, are errors that say so."""
    with pytest.raises(SessionEnded, match="not open: use it as `async with"):
        await Session(counter(), TASK).step("hello")
    for spec in ("test/counter", Counter):
        with pytest.raises(
            InvalidInput, match=r"the environment is (a str|the class Counter); give"
        ):
            Session(spec, TASK)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the task is a dict; give Task"):
        Session(counter(), {"id": "a"})  # type: ignore[arg-type]


# Exact turns ------------------------------------------------------------------------------


def exact(prompt: list[int], response: list[int], message: Any, **more: Any) -> Reply:
    n = len(response)
    sampled = Sampled(
        prompt_ids=np.array(prompt, np.int32),
        response_ids=response,
        logprobs=[-0.5] * n,
        segments=(Segment(n, 1, 1),),
    )
    return Reply(message=message, sampled=sampled, **more)


async def test_exact_turns_are_kept_as_deltas() -> None:
    """A prompt that extends the last sequence is stored as what is new."""
    async with Session(counter(), TASK) as session:
        await session.step(exact([1, 2], [3, 4], call(("add", "{}"))))
        assert session.prefix_ids is not None
        assert session.prefix_ids.tolist() == [1, 2, 3, 4]
        assert session.prefix_messages == 2
        await session.step(exact([1, 2, 3, 4, 9], [5], call(("add", "{}"))))
        tokens = session.turns[1].tokens
        assert tokens is not None
        assert (tokens.prompt_kept, tokens.prompt_ids.tolist()) == (4, [9])
        assert session.turns[1].edge == "continue"
        assert session.tree.sequence(session.turns[1]).tolist() == [1, 2, 3, 4, 9, 5]


async def test_broken_prefix_and_edited_context_are_rewrites() -> None:
    """Stripped thinking is a rewrite, and the messages that were really shown are recorded."""
    async with Session(counter(), TASK) as session:
        first = {**call(("add", "{}")), "reasoning_content": "hm"}
        await session.step(exact([1, 2], [7, 3, 4], first))
        shown = [dict(m) for m in session.messages]
        del shown[1]["reasoning_content"]
        await session.step(exact([1, 2, 3, 4, 9], [5], call(("add", "{}")), context=shown))
        turn = session.turns[1]
        assert (turn.edge, turn.kept) == ("rewrite", 1)
        assert session.tree.context(turn) == shown
        assert session.tree.prompt(turn).tolist() == [1, 2, 3, 4, 9]


async def test_ids_that_do_not_fit_are_refused() -> None:
    """Log-probs of another length never reach the store."""
    async with Session(counter(), TASK) as session:
        bad = exact([1], [2, 3], "x")
        assert bad.sampled is not None
        bad.sampled.logprobs = [-0.5]
        bad.message = {"role": "assistant", "content": "x"}
        with pytest.raises(InvalidInput, match="2 response ids but logprobs"):
            await session.step(bad)


# Forks ------------------------------------------------------------------------------------


async def test_fork_by_replay_is_the_same_world(tmp_path: Path) -> None:
    """A rival attempt sees the same state, has its own outcome, and shares the prefix."""
    async with Store(tmp_path) as store, Session(counter(), TASK, store=store) as session:
        await session.step(call(("add", "{}"), ("dice", "{}")))
        await session.step(call(("add", "{}")))
        async with await session.fork(0) as rival:
            result = await rival.step(call(("add", '{"n": 2}')))
            assert result.observation[0]["content"] == "now 3"
            await rival.step(call(("finish", "{}")))
        await session.step(call(("finish", "{}")))
        tree = session.tree
    assert [a.outcome and a.outcome.score for a in tree.attempts] == [0.0, 1.0]
    assert [t.index for t in tree.trajectory(tree.attempts[1])] == [0, 2, 3]
    assert [t.edge for t in tree.turns] == [
        "continue",
        "continue",
        "alternative",
        "continue",
        "continue",
    ]
    with Run(tmp_path) as run:
        assert run.session(session.id).to_json() == tree.to_json()


async def test_fork_before_the_first_turn() -> None:
    """A fork at None starts a fresh attempt in the same session."""
    async with Session(counter(), TASK) as session:
        await session.step(call(("add", "{}")))
        async with await session.fork(None) as rival:
            assert len(rival.messages) == 1
            await rival.step(call(("finish", "{}")))
        assert session.tree.turns[1].parent is None
        assert session.tree.turns[1].edge == "alternative"


async def test_fork_of_a_fork() -> None:
    """Forks can be forked, and every attempt keeps its own path."""
    async with Session(counter(), TASK) as session:
        await session.step(call(("add", "{}")))
        one = await session.fork(0)
        await one.step(call(("add", '{"n": 10}')))
        two = await one.fork(1)
        result = await two.step(call(("add", "{}")))
        assert result.observation[0]["content"] == "now 12"
        assert [t.index for t in two.turns] == [0, 1, 2]
        with pytest.raises(InvalidInput, match="not part of attempt 0"):
            await session.fork(1)


async def test_a_fork_that_is_cancelled_while_it_is_recorded_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork that is cancelled after the store has recorded it is recorded as cancelled."""
    async with Store(tmp_path) as store:
        async with Session(counter(), TASK, store=store, session_id="s") as session:
            await session.step(call(("add", "{}")))
            written, put = asyncio.Event(), store.put_attempt

            async def slow(name: str, attempt: Attempt) -> None:
                await put(name, attempt)
                if attempt.index == 1 and not attempt.status.ended:
                    written.set()
                    await asyncio.Event().wait()

            monkeypatch.setattr(store, "put_attempt", slow)
            forking = asyncio.create_task(session.fork(0))
            await written.wait()
            forking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await forking
            await session.step(call(("finish", "{}")))
    with Run(tmp_path) as run:
        assert [str(one.status) for one in run.session("s").attempts] == ["completed", "cancelled"]


async def test_fork_that_diverges_is_refused() -> None:
    """A world that can't be repeated raises, and leaves no attempt behind."""
    async with Session(counter(), TASK) as session:
        await session.step(call(("clock", "{}")))
        with pytest.raises(ForkDiverged, match="another observation"):
            await session.fork(0)
        assert len(session.tree.attempts) == 1


async def test_unforkable_is_declared() -> None:
    """An environment may refuse to be forked, and an ended episode can't be forked."""
    async with Session(EnvSpec(id="test/unforkable"), TASK) as session:
        await session.step(call(("add", "{}")))
        with pytest.raises(Unforkable, match="declares"):
            await session.fork(0)
    async with Session(counter(), TASK) as session:
        await session.step(call(("finish", "{}")))
        with pytest.raises(Unforkable, match="ended the episode"):
            await session.fork(0)


async def test_a_task_can_refuse_forks() -> None:
    """A task whose turns must not be repeated declares this in its data."""
    once = Task(id="once", data={**TASK.data, "replayable": False})
    async with Session(counter(), once) as session:
        await session.step(call(("add", "{}")))
        with pytest.raises(Unforkable, match="can't be replayed"):
            await session.fork(0)
        with pytest.raises(Unforkable, match="can't be replayed"):
            await session.fork(None)


async def test_fork_from_snapshot_replays_only_the_rest() -> None:
    """With snapshots, what can't be replayed before them does not matter."""
    Snapshots.resets.clear()
    async with Session(EnvSpec(id="test/snapshots"), TASK, snapshot_every=2) as session:
        await session.step(call(("clock", "{}"), ("add", "{}")))
        await session.step(call(("add", "{}")))
        await session.step(call(("add", "{}")))
        assert [bool(t.snapshot) for t in session.turns] == [False, True, False]
        rival = await session.fork(2)
        result = await rival.step(call(("add", "{}")))
        assert result.observation[0]["content"] == "now 4"
        assert len(Snapshots.resets) == 1


async def test_exact_fork_continues_the_shared_ids() -> None:
    """A rival's first prompt extends the shared sequence, as a delta."""
    async with Session(counter(), TASK) as session:
        await session.step(exact([1, 2], [3], call(("add", "{}"))))
        await session.step(exact([1, 2, 3, 8], [4], call(("add", "{}"))))
        rival = await session.fork(0)
        assert rival.prefix_ids is not None
        assert rival.prefix_ids.tolist() == [1, 2, 3]
        await rival.step(exact([1, 2, 3, 8], [6], call(("add", "{}"))))
        tokens = rival.turns[-1].tokens
        assert tokens is not None
        assert tokens.prompt_kept == 3
