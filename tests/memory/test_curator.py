"""Curators of a memory, and the reward of their decisions from later sessions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.locks import CODES, COLOURS, lock
from trajgym.envs import EnvSpec
from trajgym.rollout import PolicyRequest, ScriptedPolicy, call, collect
from trajgym.rollout.memory import (
    Curator,
    Decided,
    Decision,
    Demonstration,
    Evidence,
    MemoryBank,
    StructuralCurator,
    curate,
    decision_rewards,
    task_streams,
    with_memory,
)
from trajgym.trajectory import Message, Run, SessionTree, Task, text_of

SPEC = EnvSpec(id="test/locks")
HOW = 'turn({"code": %d})\n   -> it opens'


def learner() -> ScriptedPolicy:
    """Knows the codes of red locks; at others does what the first demonstration shows."""

    def script(request: PolicyRequest) -> Message:
        assert request.task is not None
        if request.task.id.endswith("red"):
            return call("turn", code=CODES[request.task.data["place"]])
        shown = text_of(request.messages[0])
        places = {code: shown.find(HOW % code) for code in range(10)}
        known = [code for code, place in places.items() if place >= 0]
        return call("turn", code=min(known, key=places.__getitem__, default=0))

    return ScriptedPolicy(script)


def wrong() -> Demonstration:
    return Demonstration(
        id="demonstration-wrong",
        tasks=("elsewhere",),
        query="Open the lock of the castle.",
        text=f"1. {HOW % 1}",
        evidence=(Evidence(session="elsewhere"),),
    )


async def stream(
    tmp_path: Path, bank: MemoryBank, tasks: Sequence[Task], curator: Curator
) -> tuple[list[Decided], list[SessionTree]]:
    """Attempt the tasks one after the other; the curator decides after each."""
    memory, decided, trees = tmp_path / "memory.jsonl", [], []
    for number, task in enumerate(tasks):
        bank.save(memory)
        out = tmp_path / f"run-{number}"
        await collect(with_memory(SPEC, memory, k=6), [task], learner(), out, samples=1)
        with Run(out) as run:
            (tree,) = run.sessions()
        trees.append(tree)
        decided += await curate(bank, [(tree, str(task.prompt))], curator)
    return decided, trees


async def control(tmp_path: Path, tasks: Sequence[Task]) -> list[SessionTree]:
    await collect(SPEC, tasks, learner(), tmp_path / "control", samples=1)
    with Run(tmp_path / "control") as run:
        return list(run.sessions())


async def test_an_insertion_is_worth_what_later_sessions_gain(tmp_path: Path) -> None:
    """What one session showed lets the later ones of its stream solve their tasks."""
    tasks = [lock("castle", colour) for colour in COLOURS[:4]]
    plain = await control(tmp_path, tasks[1:])
    bank = MemoryBank()
    decided, trees = await stream(tmp_path, bank, tasks, StructuralCurator())
    first = decided[0]
    assert (first.decision.operation, first.session) == ("insert", trees[0].record.id)
    rewards = decision_rewards(decided, [*trees, *plain])
    # Shown to three sessions, which solved their tasks; the three without it did not. The one
    # that it was learnt from does not count.
    assert (rewards[0].value, rewards[0].later, rewards[0].baseline) == (1.0, 3, 3)
    last = rewards[-1]
    assert last.value is None, "no session came after it"
    assert not any(one.refused for one in decided)


async def test_a_harmful_record_is_deleted_and_that_is_worth_something(tmp_path: Path) -> None:
    """A record that never helped goes; sessions after that do better than those before."""
    bank = MemoryBank([wrong()])
    tasks = [
        lock("castle", colour) for colour in ("blue", "green", "black", "red", "white", "grey")
    ]
    decided, trees = await stream(tmp_path, bank, tasks, StructuralCurator(patience=3))
    deleted = next(one for one in decided if one.decision.operation == "delete")
    assert deleted.decision.record.id == "demonstration-wrong"
    assert deleted.session == trees[2].record.id
    assert "demonstration-wrong" not in bank
    reward = decision_rewards(decided, trees)[decided.index(deleted)]
    assert (reward.value, reward.later, reward.baseline) == (1.0, 3, 3)


class Careless(Curator):
    """Updates what is not there, and inserts twice."""

    async def decide(self, bank: MemoryBank, tree: SessionTree, query: str) -> list[Decision]:
        return [
            Decision("update", wrong()),
            Decision("insert", wrong()),
            Decision("insert", wrong()),
        ]


async def test_impossible_decisions_change_nothing(tmp_path: Path) -> None:
    """They are returned with the reason, have no reward, and the others are carried out."""
    bank = MemoryBank()
    decided, trees = await stream(tmp_path, bank, [lock("castle", "red")], Careless())
    assert [bool(one.refused) for one in decided] == [True, False, True]
    assert "has no record" in decided[0].refused
    assert len(bank) == 1
    assert [one.value for one in decision_rewards(decided, trees)] == [None, None, None]


def test_related_tasks_form_a_stream() -> None:
    """Tasks that are mixed are told apart by their texts, and keep their order."""
    doors = [f"Open the {colour} lock of the castle." for colour in COLOURS]
    dates = [f"Parse the date {year}-01-01 and print its weekday." for year in range(2000, 2006)]
    mixed = [prompt for pair in zip(doors, dates, strict=True) for prompt in pair]
    streams = task_streams([Task(id=prompt, prompt=prompt) for prompt in mixed])
    assert [[task.prompt for task in stream] for stream in streams] == [doors, dates]


@given(st.lists(st.text("abc ", max_size=12), max_size=12), st.floats(0.01, 1))
def test_streams_divide_the_tasks(prompts: list[str], least: float) -> None:
    """Every task is in one stream, and streams keep the order."""
    tasks = [Task(id=str(number), prompt=prompt) for number, prompt in enumerate(prompts)]
    streams = task_streams(tasks, least=least)
    numbers = [[int(task.id) for task in stream] for stream in streams]
    assert sorted(chain.from_iterable(numbers)) == list(range(len(tasks)))
    assert all(found == sorted(found) for found in numbers)


def test_a_curator_has_to_wait_for_a_session() -> None:
    """A patience of 0 would delete before anything was seen."""
    with pytest.raises(ValueError, match="patience is 0"):
        StructuralCurator(patience=0)
