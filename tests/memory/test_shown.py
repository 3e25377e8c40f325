"""The environment that shows memory, and the effect that is measured with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory.locks import CODES, COLOURS, Locks, expert, lock, locks, reader
from trajgym.envs import Env, EnvSpec, Session, register
from trajgym.rollout import PolicyRequest, ScriptedPolicy, call, collect
from trajgym.rollout.memory import (
    Demonstration,
    Evidence,
    MemoryBank,
    build_memory,
    measure_effect,
    memory_use,
    with_memory,
)
from trajgym.trajectory import InvalidInput, Message, Run, Task, text_of

SPEC = EnvSpec(id="test/locks")
OLD, NEW = COLOURS[:1], COLOURS[1:]


@pytest.fixture
async def memory(tmp_path: Path) -> Path:
    """A memory of solved tasks, one at each place."""
    run = tmp_path / "old"
    await collect(SPEC, locks(*OLD), expert(), run, samples=1, concurrency=2)
    with Run(run) as found:
        build_memory(found, merge=None).save(tmp_path / "memory.jsonl")
    return tmp_path / "memory.jsonl"


@pytest.mark.parametrize(
    ("env", "opening"),
    [
        ("test/locks", "text"),
        ("test/locks", "result"),
        ("test/locks", "messages"),
        ("test/later-locks", "text"),
    ],
)
async def test_memory_is_shown_and_recorded(memory: Path, env: str, opening: str) -> None:
    """What is found stands before the first user message, and the first turn names it."""
    spec = with_memory(EnvSpec(id=env, config={"opening": opening}), memory, k=1)
    async with Session(spec, lock("castle", "green")) as session:
        (user,) = [one for one in session.messages if one["role"] == "user"]
        await session.step(call("turn", code=1))
        await session.step(call("turn", code=4))
    text = text_of(user)
    assert text.startswith("<memory>\nHow a similar task was solved:\n1. turn(")
    assert text.endswith("</memory>\n\nOpen the green lock of the castle.")
    assert session.outcome is not None
    assert session.outcome.passed
    use = memory_use(session.tree)
    assert use is not None
    (shown,) = use.records
    assert MemoryBank.load(memory)[shown].tasks == ("castle-red",)
    assert not use.withheld
    assert "memory" not in session.turns[1].signals
    if opening == "result":
        assert session.turns[0].signals["place"] == "castle"


async def test_the_other_environment_is_unchanged(memory: Path) -> None:
    """Tools, budgets and tasks are the wrapped environment's."""
    spec = with_memory(SPEC, memory)
    assert issubclass(spec.resolve(), Locks)
    async with (
        Session(spec, lock("castle", "green")) as session,
        Session(SPEC, lock("castle", "green")) as plain,
    ):
        assert session.tools == plain.tools
        assert session.budgets == plain.budgets
    assert memory_use(plain.tree) is None


async def test_a_fork_sees_the_same_opening(memory: Path) -> None:
    """A rival attempt is opened with the same memory, which the shared turn has named."""
    async with Session(with_memory(SPEC, memory), lock("castle", "green")) as session:
        await session.step(call("turn", code=1))
        async with await session.fork(0) as rival:
            assert rival.messages == session.messages
            await rival.step(call("turn", code=4))
    assert "memory" in session.tree.turns[0].signals
    assert "memory" not in session.tree.turns[1].signals


async def test_the_same_task_is_not_given_away(memory: Path) -> None:
    """What was learnt from the task itself is left out, unless it is asked for."""
    for same_task in (False, True):
        spec = with_memory(SPEC, memory, k=1, same_task=same_task)
        async with Session(spec, lock("castle", "red")) as session:
            await session.step(call("turn", code=4))
        use = memory_use(session.tree)
        assert use is not None
        bank = MemoryBank.load(memory)
        tasks = {task for name in use.records for task in bank[name].tasks}
        assert ("castle-red" in tasks) is same_task


async def test_the_length_is_bounded(memory: Path) -> None:
    """A record that does not fit is left out as a whole."""
    spec = with_memory(SPEC, memory, characters=30)
    async with Session(spec, lock("castle", "green")) as session:
        assert text_of(session.messages[0]) == "Open the green lock of the castle."


async def test_what_was_learnt_with_memory_does_not_contain_it(
    memory: Path, tmp_path: Path
) -> None:
    """A task without a prompt of its own is known by its opening, less the memory in it."""
    task = lock("castle", "green").model_copy(update={"prompt": None})
    out = tmp_path / "new"
    await collect(with_memory(SPEC, memory), [task], expert(), out, samples=1)
    with Run(out) as run:
        (record,) = build_memory(run)
        (tree,) = run.sessions()
    use = memory_use(tree)
    assert use is not None
    assert use.records
    assert record.query == "Open some lock of the castle."


async def test_a_missing_memory_stops_the_run_first(tmp_path: Path) -> None:
    """A run that can't read its memory ends before a session is opened."""
    spec = with_memory(SPEC, tmp_path / "none.jsonl")
    with pytest.raises(InvalidInput, match="no memory can be read"):
        await collect(spec, locks("red"), reader(), tmp_path / "run", samples=1)


async def test_the_effect_is_a_paired_comparison(memory: Path, tmp_path: Path) -> None:
    """The same tasks with and without memory, in one run: memory solves them, nothing else does."""
    out = tmp_path / "both"
    spec = with_memory(SPEC, memory, k=1, share=0.5)
    await collect(spec, locks(*NEW), reader(), out, samples=6, concurrency=2)
    with Run(out) as run:
        effect = measure_effect([run])
    assert min(effect.treated, effect.control) > 20
    assert effect.treated + effect.control == 90
    assert effect.overall is not None
    assert effect.overall.value == 1.0
    assert effect.overall.tasks >= 12
    assert len(effect.records) == 3
    assert all(found.value == 1.0 for found in effect.records.values())


async def test_a_misleading_record_is_found_and_retired(memory: Path, tmp_path: Path) -> None:
    """Two runs of the same tasks: the record that makes sessions fail is no longer retrieved."""
    bank = MemoryBank.load(memory)
    wrong = '1. turn({"code": 10})\n   -> it opens'
    misleading = Demonstration(
        id="demonstration-bad",
        tasks=("other",),
        query="Open the lock of the castle quickly.",
        text='1. turn({"code": 1})\n   -> it opens\n' * 3 + wrong,
        evidence=(Evidence(session="s"),),
    )
    bank.insert(misleading)
    bank.save(memory)

    def knows(request: PolicyRequest) -> Message:
        text = "\n".join(text_of(one) for one in request.messages)
        if text.count('turn({"code": 1})') >= 3:
            return call("turn", code=1)
        return call("turn", code=CODES["castle"])

    policy = ScriptedPolicy(knows)
    tasks = [lock("castle", colour) for colour in [*NEW, "pink", "grey", "gold", "teal"]]
    for name, spec in (("with", with_memory(SPEC, memory, k=4)), ("without", SPEC)):
        await collect(spec, tasks, policy, tmp_path / name, samples=1, concurrency=2)
    with Run(tmp_path / "with") as treated, Run(tmp_path / "without") as control:
        effect = measure_effect([treated, control])
    assert effect.overall is not None
    assert effect.overall.value == -1.0
    assert "demonstration-bad" in bank.apply(effect)
    assert "demonstration-bad" not in [m.record.id for m in bank.search(str(tasks[0].prompt), 9)]


@register("test/bad-notes")
class BadNotes(Env):
    """Reports a signal that is no JSON value."""

    def reset(self, task: Task, seed: int | None) -> str:
        self.note_signals({"when": object()})
        return "Go."


async def test_signals_of_an_opening_are_checked() -> None:
    """A signal that can't be recorded ends the attempt before its first turn, with the reason."""
    async with Session(EnvSpec(id="test/bad-notes"), Task(id="t")) as session:
        pass
    assert str(session.status) == "failed:env"
    assert "note_signals(): signals['when'] holds object" in session.attempt.cause
