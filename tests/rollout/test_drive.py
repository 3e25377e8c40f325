"""One session at a time, for trainers that have a loop of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.trl.tiny import Words, calls, said, tasks
from trajgym.envs import EnvSpec, Reply, Session, Truncate
from trajgym.rollout import Policy, PolicyRequest, TreeExpansion, run_session

WORDS = EnvSpec(id="tests.trl.tiny:Words")
(TASK,) = tasks(1)


class Speaker(Policy):
    """Says long words; does something else where told."""

    name = "test:speaker"

    def __init__(self, turn: int = -1, instead: Any = None) -> None:
        self.turn, self.instead = turn, instead
        self.seeds: list[int | None] = []
        self.asked = asyncio.Event()

    async def sample(self, request: PolicyRequest) -> Reply:
        self.seeds.append(request.seed)
        self.asked.set()
        if request.turn == self.turn:
            if isinstance(self.instead, BaseException):
                raise self.instead
            return Reply(message=self.instead)
        return Reply(message=said("maybe"))


async def test_a_session_is_taken_to_its_end_and_closed() -> None:
    """An entered, driven, verified and closed session is left, with a seed for every turn."""
    opened, closed, policy = Words.opened, Words.closed, Speaker()
    session = Session(WORDS, TASK)
    await run_session(session, policy, TASK, seed=3)
    assert str(session.status) == "truncated:turns"
    assert session.outcome is not None
    assert session.outcome.passed
    assert (Words.opened - opened, Words.closed - closed) == (1, 1)
    assert len(set(policy.seeds)) == 3
    again = Speaker()
    await run_session(Session(WORDS, TASK, session_id=session.id), again, TASK, seed=3)
    assert again.seeds == policy.seeds


async def test_a_full_context_is_the_agents_own_doing() -> None:
    """A policy that raises Truncate ends the attempt truncated, verified and scored."""
    session = Session(WORDS, TASK)
    await run_session(session, Speaker(2, Truncate("context", "4096 ids")), TASK)
    assert str(session.status) == "truncated:context"
    assert session.outcome is not None
    assert session.outcome.score == pytest.approx(2 / 3)


async def test_a_broken_policy_is_not() -> None:
    """Any other error of the policy ends it failed, without a score, and is not raised."""
    session = Session(WORDS, TASK)
    await run_session(session, Speaker(1, ValueError("no such id")), TASK)
    assert str(session.status) == "failed:policy"
    assert session.outcome is None
    assert "no such id" in session.attempt.cause


async def test_a_session_grows_into_a_tree() -> None:
    """With an expansion, rivals are forked and driven to their ends before the session closes."""
    opened, closed = Words.opened, Words.closed
    session = Session(WORDS, TASK)
    await run_session(session, Speaker(), TASK, expansion=TreeExpansion(nodes=2))
    tree = session.tree
    assert [str(attempt.status) for attempt in tree.attempts] == ["truncated:turns"] * 3
    assert (Words.opened - opened, Words.closed - closed) == (3, 3)


async def test_being_cancelled_closes_everything() -> None:
    """A cancelled session has closed its environment when the cancellation goes on."""
    closed, policy = Words.closed, Speaker(0, said("maybe"))
    session = Session(EnvSpec(id=WORDS.id, config={"hang": True}), TASK)
    running = asyncio.create_task(run_session(session, policy, TASK))
    async with asyncio.timeout(60):
        await policy.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert Words.closed == closed + 1
    assert str(session.status) == "cancelled"


async def test_a_deadline_ends_an_attempt() -> None:
    """What does not end in time is failed, and its environment closed."""
    hanging = Session(EnvSpec(id=WORDS.id, config={"hang": True}), TASK)
    await run_session(hanging, Speaker(), TASK, deadline=0.5)
    assert str(hanging.status) == "failed:deadline"
    broken = Session(EnvSpec(id=WORDS.id, config={"fail": "tool"}), TASK)
    await run_session(broken, Speaker(0, calls("note", text="x")), TASK)
    assert str(broken.status) == "failed:env"
