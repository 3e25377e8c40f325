"""Any text in any field: lone surrogates, NUL and control characters as well."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import Counter
from trajgym.envs import EnvSpec, Session
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    Run,
    Segment,
    SessionRecord,
    Span,
    Status,
    Store,
    Task,
    Turn,
    TurnTokens,
)
from trajgym.trajectory._codec import (
    replace_surrogates,
    to_jsonable,
)

wild = st.text(st.characters(exclude_categories=()), max_size=12)
"""Any text: lone surrogates, NUL and control characters as well."""


def whole(text: str) -> str:
    """Return text as a store keeps it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def everything(draw: Callable[[], str]) -> tuple[SessionRecord, Turn, Attempt, Group]:
    """Return records whose every text field holds drawn text."""

    def values() -> dict[str, Any]:
        return {draw(): draw(), "deep": [{draw(): [draw()]}, [draw(), 1]]}

    def message(role: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": draw(), **more}

    call = {"id": draw(), "type": "function", "function": {"name": draw(), "arguments": draw()}}
    tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=[1],  # type: ignore[arg-type]
        response_ids=[2],  # type: ignore[arg-type]
        logprobs=[-1.0],  # type: ignore[arg-type]
        segments=(Segment(1, 0, 0),),
        spans=(Span(draw(), 0, 1, draw()),),
    )
    head = SessionRecord(
        id="s" + draw(),
        task=draw(),
        env={"id": draw(), "config": values()},
        group=draw(),
        tools=[values()],
        budgets=values(),
        labels={draw(): draw()},
    )
    one = Turn(
        index=0,
        parent=None,
        message=message("assistant", tool_calls=[call], reasoning_content=draw()),
        context=[message("user"), message("system", name=draw())],
        observation=[message("tool", tool_call_id=draw())],
        calls=[CallResult(call_id=draw(), name=draw(), status="ok")],
        signals=values(),
        finish=draw(),
        policy=draw(),
        tokens=tokens,
        snapshot=draw(),
        agent="main",
    )
    details = Outcome(score=1.0, passed=True, details=values())
    status = Status("truncated", "x" + draw())
    end = Attempt(leaf=0, status=status, cause=draw(), error=draw(), outcome=details)
    name = draw().replace("_", "") or "g"
    group = Group(id=name, task=draw(), planned=1, members=[Member(draw(), 0, draw())])
    return head, one, end, group


def write_and_compare(folder: Path, draw: Callable[[], str]) -> None:
    head, one, end, group = everything(draw)
    task = Task(id="t", data={draw(): [draw()]})
    given = head.id
    with Store(folder) as store:
        store.put_task(task)
        store.put_group(group)
        store.begin_session(head)
        store.append_turn(head.id, one)
        store.add_signals(given, 0, {"note": draw()}, source=draw())
        store.put_derived(given, draw(), b"1")
        store.put_blob(b"data", draw())
        store.set_meta(draw(), draw())
        store.put_attempt(given, end).wait()
    with Run(folder) as run:
        assert run.check() == []
        tree = run.session(given)
        del tree.turns[0].signals["note"]
        (kept,) = run.groups()
        (asked,) = run.tasks()
    assert tree.record == head
    assert tree.record.id == whole(given)
    assert to_jsonable(tree.turns[0]) == to_jsonable(one)
    assert tree.turns[0].tokens is not None
    assert tree.turns[0].tokens.spans == one.tokens.spans  # type: ignore[union-attr]
    assert to_jsonable(tree.attempts[0]) == to_jsonable(end)
    assert tree.attempts[0].status == end.status
    assert kept == group
    assert asked.data == {whole(k): [whole(v[0])] for k, v in task.data.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(wild, min_size=1, max_size=6))
def test_any_text_in_any_field_is_kept(texts: list[str]) -> None:
    """Arbitrary text in every text field of every record is durable; memory and store agree."""
    drawn = cycle(texts)
    with tempfile.TemporaryDirectory() as folder:
        write_and_compare(Path(folder), lambda: next(drawn))


@pytest.mark.parametrize(("text", "step"), [("x" * 10_000_000, 8), ("\udc80", 1), ("\0" * 9, 1)])
def test_text_in_one_field_is_kept(text: str, step: int, tmp_path: Path) -> None:
    """Ten megabytes, a lone surrogate or NULs in one field alone, one field after the other."""
    drawn: list[None] = []

    def one_long(at: int) -> str:
        drawn.append(None)
        return text if len(drawn) == at else "x"

    everything(lambda: one_long(0))
    for at in range(1, len(drawn) + 1, step):
        drawn.clear()
        write_and_compare(tmp_path / str(at), lambda at=at: one_long(at))  # type: ignore[misc]


@given(st.text(st.sampled_from("aé中\U0001f600\0\ufeff\ufffe\ud800\udbff\udc00\udfff")))
def test_surrogates_are_replaced_as_the_codec_does(text: str) -> None:
    """Pairs become their character and lone ones U+FFFD, wherever they stand."""
    assert replace_surrogates(text) == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


async def test_a_failure_with_a_lone_surrogate_ends_durably(tmp_path: Path) -> None:
    """An error text from ``os.fsdecode`` is recorded as the failure that it is, not as a crash."""
    assert Counter
    with Store(tmp_path) as store:
        session = Session(EnvSpec(id="test/counter"), Task(id="t"), store=store, session_id="s")
        async with session:
            await session.fail("env", os.fsdecode(b"caf\xe9"), "trace \udce9")
        assert str(session.status) == "failed:env"
        with store.read() as run:
            (kept,) = run.session("s").attempts
        assert (str(kept.status), kept.cause) == ("failed:env", "caf\ufffd")
        assert session.attempt.cause == kept.cause
