"""Building a memory from real sessions: what is learnt, found, merged, retired and kept on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import test_subagents  # noqa: F401 - registers test/boss
from tests.memory.locks import expert, locks
from trajgym.envs import EnvSpec
from trajgym.rollout import PolicyRequest, ScriptedPolicy, annotate, call, collect, say
from trajgym.rollout.evaluation import Difference
from trajgym.rollout.memory import (
    Case,
    Demonstration,
    Evidence,
    Lesson,
    LessonWriter,
    MemoryBank,
    MemoryEffect,
    MemoryRecord,
    Subtask,
    ToolNote,
    build_memory,
)
from trajgym.rollout.memory._similarity import SimilarityIndex
from trajgym.trajectory import InvalidInput, Message, Run, Task

SPEC = EnvSpec(id="test/locks")


async def run_of(path: Path, policy: ScriptedPolicy, *colours: str) -> Path:
    await collect(SPEC, locks(*colours), policy, path, samples=1, concurrency=2)
    return path


def lesson(name: str, query: str, text: str, **more: object) -> Lesson:
    base = {"tasks": (name,), "evidence": (Evidence(session=f"s-{name}"),)}
    return Lesson.model_validate({"id": name, "query": query, "text": text, **base, **more})


async def test_successes_become_demonstrations(tmp_path: Path) -> None:
    """A solved task gives its steps, with the session and turns that show them."""
    with Run(await run_of(tmp_path, expert(), "red")) as run:
        bank = build_memory(run, merge=None)
        sessions = {tree.record.task: tree.record.id for tree in run.sessions()}
    found = next(record for record in bank if record.tasks == ("castle-red",))
    assert isinstance(found, Demonstration)
    assert found.source == "structural"
    assert found.query == "Open the red lock of the castle."
    assert [step.action for step in found.steps] == ['turn({"code": 10})', 'turn({"code": 4})']
    assert found.text.endswith('2. turn({"code": 4})\n   -> it opens')
    assert found.evidence == (Evidence(session=sessions["castle-red"], turns=(0, 1)),)


async def test_failures_become_structural_lessons(tmp_path: Path) -> None:
    """An unsolved task gives what failed where, labelled as found without a model."""
    answers = [call("turn", code=3), call("turn", code=12), call("turn", code=3)]
    with Run(await run_of(tmp_path, ScriptedPolicy(answers), "red")) as run:
        (found,) = build_memory(run, merge=0.3)
    assert isinstance(found, Lesson)
    assert found.source == "structural"
    assert found.failure is not None
    assert found.failure.status == "truncated:turns"
    failed = found.failure.first_failed_call
    assert failed is not None
    assert (failed.turn, failed.tool, failed.status) == (1, "turn", "error")
    assert "CodeError: 12 has two digits" in failed.error
    assert found.failure.repeats[0].turns == (0, 2)
    assert found.text == (
        "The attempt reached its limit of turns after 3 turns without solving the task (score 0).\n"
        'The first call that failed was turn({"code": 12}), error: '
        "Error: CodeError: 12 has two digits\n"
        'Repeated 2 times with the same result: turn({"code": 3})'
    )
    # Three tasks failed alike: one lesson with the evidence of all.
    assert sorted(found.tasks) == ["castle-red", "harbour-red", "station-red"]
    assert {evidence.turns for evidence in found.evidence} == {(0, 1, 2)}
    assert len(found.merged) == 2


async def test_a_model_writes_lessons(tmp_path: Path) -> None:
    """The lesson that a model wrote about an attempt replaces the structural one, by name."""
    await run_of(tmp_path, ScriptedPolicy.always(call("turn", code=1)), "red")
    text = "<lesson>Codes depend on the place: look for another lock there.</lesson>"
    async with LessonWriter(ScriptedPolicy.always(say(text), name="writer")) as writer:
        report = await annotate(tmp_path, writer)
    assert report.annotated == 3
    with Run(tmp_path) as run:
        bank = build_memory(run, merge=None)
    assert {record.source for record in bank} == {"model:scripted:writer"}
    assert {record.text for record in bank} == {
        "Codes depend on the place: look for another lock there."
    }


async def test_an_answer_without_a_lesson_leaves_the_structural_one(tmp_path: Path) -> None:
    """A model that writes nothing usable is reported, and nothing of it is stored."""
    await run_of(tmp_path, ScriptedPolicy.always(call("turn", code=1)), "red")
    async with LessonWriter(ScriptedPolicy.always(say("I would rather not."))) as writer:
        report = await annotate(tmp_path, writer)
    assert (report.annotated, sum(report.failed.values())) == (0, 3)
    with Run(tmp_path) as run:
        assert {record.source for record in build_memory(run)} == {"structural"}


async def test_cases_and_notes_on_tools(tmp_path: Path) -> None:
    """Each decision is a case with its attempt's end; a tool's calls are counted."""
    with Run(await run_of(tmp_path, expert(), "red", "blue")) as run:
        bank = build_memory(run, kinds=("case", "tool"), merge=None)
    (note,) = [record for record in bank if isinstance(record, ToolNote)]
    assert note.calls == {"error": 6, "ok": 6}
    assert note.text.splitlines()[0] == "turn: 6 of 12 calls succeeded."
    assert "CodeError" in note.text
    state = "Error: CodeError: 10 has two digits"
    (found,) = bank.search(f"Open the blue lock of the castle.\n{state}", 1, kinds=["case"])
    assert isinstance(found.record, Case)
    assert (found.record.action, found.record.positive) == ('turn({"code": 4})', True)
    assert "CodeError" in found.record.state


async def test_subtasks_are_found_by_what_was_asked(tmp_path: Path) -> None:
    """What a sub-agent was asked to do, and did, is known by its own prompt."""

    def script(request: PolicyRequest) -> Message:
        if request.agent != "main":
            return say("It has 3.") if request.turn else call("look", where="fox")
        return say("Done.") if request.turn else call("delegate", work="Measure the fox.")

    spec, task = EnvSpec(id="test/boss"), Task(id="t", prompt="Which is larger?")
    await collect(spec, [task], ScriptedPolicy(script), tmp_path, samples=1)
    with Run(tmp_path) as run:
        bank = build_memory(run, kinds=["subtask"])
    (found,) = bank.search("Measure the owl.", kinds=["subtask"])
    assert isinstance(found.record, Subtask)
    assert found.record.query == "Measure the fox."
    assert (found.record.agent, found.record.positive) == ("scout", True)
    assert found.record.evidence[0].turns == (1, 2)
    assert found.record.text == (
        '1. look({"where": "fox"})\n   -> fox is 3 long\n2. It has 3.\n'
        "The attempt that this was part of solved the task."
    )


async def test_the_most_similar_task_is_found(tmp_path: Path) -> None:
    """Words that few tasks share count most; retired records and the same task's are left out."""
    with Run(await run_of(tmp_path, expert(), "red", "blue")) as run:
        bank = build_memory(run, merge=None)
    query = "Open the green lock of the harbour."
    first, second = bank.search(query, 2)
    assert {*first.record.tasks, *second.record.tasks} == {"harbour-red", "harbour-blue"}
    assert 0 < second.similarity <= first.similarity <= 1
    (other,) = bank.search("Open the red lock of the harbour.", 1, without_task="harbour-red")
    assert other.record.tasks == ("harbour-blue",)
    bank.retire(other.record.id, "wrong")
    assert other.record.id not in [match.record.id for match in bank.search(query, 10)]
    assert bank.search("zebra", 10) == []


def test_merging_keeps_evidence_and_kinds_apart() -> None:
    """Similar lessons become one with both evidences; others, and other kinds, stay."""
    same = "Open the red lock of the castle."
    bank = MemoryBank(
        [
            lesson("a", same, "The code 1 was wrong."),
            lesson("b", same, "The code 1 was wrong."),
            lesson("c", "Write a parser for dates.", "The month was read as a day."),
            Demonstration(
                id="d",
                tasks=("d",),
                query=same,
                text="The code 1 was wrong.",
                evidence=(Evidence(session="s-d"),),
            ),
        ]
    )
    assert bank.merge(0.9) == [("a", "b")]
    assert [record.id for record in bank] == ["a", "c", "d"]
    assert bank["a"].tasks == ("a", "b")
    assert [one.session for one in bank["a"].evidence] == ["s-a", "s-b"]
    assert bank["a"].merged == ("b",)


def test_records_that_do_harm_are_retired() -> None:
    """Only an effect whose whole interval is below 0, on enough tasks, retires a record."""
    bank = MemoryBank([lesson(name, "q", name) for name in ("bad", "few", "unsure", "good")])
    effect = MemoryEffect(
        records={
            "bad": Difference(-0.5, -0.7, -0.2, 20),
            "few": Difference(-0.5, -0.7, -0.2, 3),
            "unsure": Difference(-0.1, -0.3, 0.1, 20),
            "good": Difference(0.5, 0.2, 0.7, 20),
            "unknown": Difference(0.5, 0.2, 0.7, 20),
        }
    )
    assert bank.apply(effect) == ["bad"]
    assert bank["bad"].retired == "effect -0.50 on 20 tasks, at most -0.20"
    assert bank["good"].effect is not None
    assert bank["good"].effect.value == 0.5
    assert bank.apply(effect) == []


@given(
    st.lists(
        st.builds(
            lesson,
            st.text(min_size=1, max_size=8),
            st.text(max_size=30),
            st.text(max_size=30),
            source=st.sampled_from(["structural", "model:x"]),
            retired=st.text(max_size=5),
        ),
        max_size=6,
        unique_by=lambda record: record.id,
    )
)
def test_a_file_gives_equal_records(
    tmp_path_factory: pytest.TempPathFactory, records: list[MemoryRecord]
) -> None:
    """Whatever the texts are, reading gives what was written, in order."""
    path = tmp_path_factory.getbasetemp() / "memory.jsonl"
    bank = MemoryBank(records)
    bank.save(path)
    assert list(MemoryBank.load(path)) == list(bank)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "not a memory"),
        (lambda lines: ['{"format": "other"}', *lines[1:]], "not a memory"),
        (lambda lines: [lines[0].replace('"version": 1', '"version": 9'), *lines[1:]], "version 9"),
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: [*lines[:-1], lines[-1][:40]], "line 3"),
        (lambda lines: [*lines[:-1], lines[-2]], "line 3.*already"),
        (lambda lines: [*lines[:-1], lines[-1].replace('"query"', '"quarry"')], "line 3.*query"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, change: object, message: str) -> None:
    """The error names the line and what is wrong with it; nothing is loaded in part."""
    path = tmp_path / "memory.jsonl"
    MemoryBank([lesson("a", "q", "t"), lesson("b", "q", "t")]).save(path)
    lines = path.read_text().splitlines()
    assert json.loads(lines[0]) == {"format": "trajgym-memory", "version": 1, "records": 2}
    path.write_text("".join(f"{line}\n" for line in change(lines)))  # type: ignore[operator]
    with pytest.raises(InvalidInput, match=message):
        MemoryBank.load(path)


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8), max_size=8),
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8),
    st.floats(0.01, 1),
)
def test_a_least_similarity_leaves_out_nothing_else(
    texts: list[list[str]], query: list[str], least: float
) -> None:
    """Texts that can't reach the least similarity are skipped; all others have the same one."""
    index = SimilarityIndex(" ".join(f"word{one}" for one in text) for text in texts)
    asked = " ".join(f"word{one}" for one in query)
    found, every = index.search(asked, least=least), index.search(asked)
    expected = {row: similarity for row, similarity in every if similarity >= least + 1e-6}
    scores = dict(found)
    assert {row: scores.get(row) for row in expected} == pytest.approx(expected)
    assert all(similarity >= least for _, similarity in found)
    if list(texts).count(query):
        assert index.search(asked, 1)[0].similarity == pytest.approx(1.0)
