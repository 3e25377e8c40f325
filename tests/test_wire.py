"""What a recording proxy adds to turns: delivery, roles, returns; kept, amended, and in no row."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajgym.trajectory import (
    Attempt,
    InvalidSession,
    Outcome,
    Segment,
    SessionRecord,
    SessionTree,
    Status,
    Store,
    Try,
    Turn,
    TurnTokens,
    Wire,
    build_rows,
)


def turn(index: int, parent: int | None = None, **fields: object) -> Turn:
    tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=[1, 2],  # type: ignore[arg-type]
        response_ids=[3 + index],  # type: ignore[arg-type]
        logprobs=[-0.5],  # type: ignore[arg-type]
        segments=(Segment(1, 0, 0),),
    )
    message = {"role": "assistant", "content": "a"}
    return Turn(index=index, parent=parent, message=message, tokens=tokens, **fields)  # type: ignore[arg-type]


def tree(*turns: Turn) -> SessionTree:
    record = SessionRecord(id="s", task="t", env={"id": "e", "config": {}})
    attempt = Attempt(leaf=0, status=Status("completed"), outcome=Outcome(score=1.0, passed=True))
    return SessionTree(record, turns, [attempt])


def test_what_the_proxy_noted_comes_back_from_the_store(tmp_path: Path) -> None:
    """Wire, role and delivery survive the store, and amendments replace what was written first."""
    wire = Wire(call="c1", dialect="chat", rule="C", tries=[Try(1.0, 0.5, "status 503")])
    first = turn(0, delivery="open", wire=wire)
    with Store(tmp_path) as store:
        store.begin_session(tree(first).record)
        store.append_turn("s", first)
        store.amend_turn("s", 0, delivery="delivered", role="side:title", role_reason="no tools")
        store.add_signals("s", 0, {"x": 1}, source="judge").wait()
        with store.read() as run:
            found = run.session("s").turns[0]
            assert [a.source for a in run.annotations("s")] == ["judge"]
    assert (found.delivery, found.role, found.role_reason) == (
        "delivered",
        "side:title",
        "no tools",
    )
    assert found.wire == wire
    assert found.signals == {"x": 1}


def test_only_answers_that_the_main_agent_got_are_trained() -> None:
    """Orphans and side calls are named instead of trained; side calls come in on request."""
    session = tree(turn(0), turn(1, delivery="orphan"), turn(2, agent="agent-1", role="side:title"))
    rows, dropped = build_rows(session)
    assert [row.turns for row in rows] == [(0,)]
    assert [d.reason for d in dropped] == [
        "turn 1: its answer never reached the agent",
        "turn 2: a call for side:title",
    ]
    assert [row.turns for row in build_rows(session, sides=True).rows] == [(0,), (2,)]


def test_several_agents_return_to_one_turn() -> None:
    """A turn names every sub-agent whose answer came in with it; its own agent can't return."""
    children = [turn(i, 0, edge="spawn", agent=f"agent-{i}") for i in (1, 2)]
    assert tree(turn(0), *children, turn(3, 0, returns=[1, 2])).turns[3].returns == [1, 2]
    with pytest.raises(InvalidSession, match="can't return"):
        tree(turn(0), turn(1, 0, returns=[0]))
