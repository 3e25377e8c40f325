"""Questions of the field's data sets, scoring, and the corpus of our own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.search.world.questions import ask
from tests.search.world.things import World
from trajgym.envs.search import (
    InvalidCorpus,
    SearchEnv,
    TagSearchEnv,
    load_tasks,
    normalize_answer,
    score_answer,
)
from trajgym.envs.search._tasks import builtin_file
from trajgym.trajectory import Task

SHARED = Path(__file__).parents[3] / "shared" / "data" / "qa" / "questions.jsonl"

HOTPOT = {
    "_id": "h1",
    "question": "Who made it?",
    "answer": "Ann",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Salt", 0]],
    "context": [["Salt", ["Ann made salt."]], ["Eel", ["Eels swim."]]],
}
SHAPES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "hotpotqa": (HOTPOT, ["Ann"], ["Salt"]),
    "hotpotqa of datasets": (
        {
            **HOTPOT,
            "supporting_facts": {"title": ["Salt"], "sent_id": [0]},
            "context": {"title": ["Salt", "Eel"], "sentences": [["Ann made salt."], ["Eels."]]},
        },
        ["Ann"],
        ["Salt"],
    ),
    "2wikimultihopqa": (
        {**HOTPOT, "evidences": [["Salt", "maker", "Ann"]], "type": "compositional"},
        ["Ann"],
        ["Salt"],
    ),
    "musique": (
        {
            "id": "2hop__1",
            "question": "Who?",
            "answer": "Ann",
            "answer_aliases": ["Anna"],
            "answerable": True,
            "paragraphs": [
                {"idx": 0, "title": "Eel", "paragraph_text": "Eels.", "is_supporting": False},
                {"idx": 1, "title": "Salt", "paragraph_text": "Salt.", "is_supporting": True},
            ],
            "question_decomposition": [{"id": 1, "question": "salt >> maker", "answer": "Ann"}],
        },
        ["Ann", "Anna"],
        ["Salt"],
    ),
    "bamboogle": ({"Question": "Who?", "Answer": "Ann"}, ["Ann"], []),
    "nq open": ({"question": "who", "answer": ["Ann", "Anna"]}, ["Ann", "Anna"], []),
    "nq": (
        {
            "id": "5",
            "question": {"text": "who", "tokens": ["who"]},
            "annotations": {"short_answers": [{"text": ["Ann"]}, {"text": []}]},
        },
        ["Ann"],
        [],
    ),
    "triviaqa": (
        {
            "question_id": "tc_1",
            "question": "Who?",
            "answer": {"value": "Ann", "aliases": ["Anna", "Ann"], "normalized_value": "ann"},
        },
        ["Ann", "Anna"],
        [],
    ),
    "flashrag": (
        {"id": "test_0", "question": "Who?", "golden_answers": ["Ann"], "metadata": {}},
        ["Ann"],
        [],
    ),
    "trainer's parquet": (
        {
            "question": "Who?",
            "data_source": "nq",
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann"]}},
        },
        ["Ann"],
        [],
    ),
    "our own": ({"id": "a", "question": "Who?", "answers": ["Ann"], "gold": ["p1"]}, ["Ann"], []),
    "a task": ({"id": "a", "data": {"question": "Who?", "answers": ["Ann"]}}, ["Ann"], []),
}


@pytest.mark.parametrize("name", SHAPES)
def test_record_shapes(name: str, tmp_path: Path) -> None:
    """A record of each data set becomes a task with its answers and supporting titles."""
    record, answers, titles = SHAPES[name]
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(record) + "\n")
    task = load_tasks(str(file))[0]
    assert task.data["answers"] == answers
    assert task.data.get("gold_titles", []) == titles
    assert len(task.data.get("gold", [])) == len(titles) or name == "our own"
    assert task.prompt is None
    assert load_tasks(str(file))[0].id == task.id


def test_parquet_is_read_as_jsonl_is(tmp_path: Path) -> None:
    """Nested records survive parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    record = SHAPES["trainer's parquet"][0]
    parquet.write_table(pa.Table.from_pylist([record]), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text(json.dumps(record))
    assert load_tasks(str(tmp_path / "t.parquet")) == load_tasks(str(tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "Who?"}', "t.jsonl:1: no question with an answer"),
        ('{"question": "Who?", "answers": [" "]}', "no question with an answer"),
        (
            '{"id": "a", "question": "Q", "answer": "Ann"}\n' * 2,
            ":2: the task id 'a' is used twice",
        ),
        ('{"id": "a", "data": {"question": "Q", "answers": []}}', "task 'a': field 'answers'"),
        ('{"id": "a", "data": ["x"]}', "t.jsonl:1"),
        ('{"id": "a", "data": {"answers": ["Ann"]}}', "t.jsonl:1: task 'a': field 'question'"),
        ('{"question": "Q", "answers": ["?!"]}', "no accepted answer has a letter"),
        ('{"question": "Q", "answers": [{"x": 1}]}', "an answer must be a text"),
        ('{"question": "Q", "answer": "Ann", "gold": "p1"}', "`gold` must be a list of strings"),
        ('{"question": "Q", "answer": "Ann", "gold": [1]}', "`gold` must be a list of strings"),
        ('{"question": "Q", "answer": "Ann", "paragraphs": [{}]}', "malformed question record"),
        ('{"question": "Q", "answer": "Ann", "context": [["T"]]}', "malformed question record"),
        (
            '{"id": "a", "data": {"question": "Q", "answers": ["Ann"], "hops": [{"answer": "x"}]}}',
            "a hop needs",
        ),
        ("", "no question there"),
    ],
)
def test_bad_questions_are_named(tmp_path: Path, text: str, message: str) -> None:
    """A record without question or answer is refused with file and line."""
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidCorpus, match=message):
        load_tasks(str(file))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["title", "text", "value", "question", "answer", "short_answers", "x"]),
        inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = ["id", "question", "answer", "answers", "golden_answers", "context", "paragraphs", "gold",
          "gold_titles", "hops", "supporting_facts", "annotations", "reward_model", "data",
          "question_decomposition"]  # fmt: skip


@settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
@given(record=st.dictionaries(st.sampled_from(FIELDS), VALUES), good=st.booleans())
def test_whatever_a_file_holds_is_a_task_or_refused(
    tmp_path: Path, record: dict[str, Any], good: bool
) -> None:
    """A record becomes a task that can be played, or is refused as InvalidCorpus: nothing else."""
    if good:
        record = {"question": "Who?", "answer": "Ann", **record}
    file = tmp_path / "any.jsonl"
    file.write_text(json.dumps(record) + "\n")
    try:
        (task,) = load_tasks(str(file))
    except InvalidCorpus:
        return
    for sample in range(6):
        assert SearchEnv.script(task, sample)
        assert TagSearchEnv.script(task, sample)


async def test_tasks_made_by_hand_are_checked_before_a_run() -> None:
    """A malformed task that was not read from a file ends the run before its first session."""
    bad = Task(id="b", data={"question": "Q", "answers": ["Ann"], "golds": []})
    with pytest.raises(InvalidCorpus, match="task 'b': field 'golds'"):
        await SearchEnv.open_run({}, [bad])


@pytest.mark.skipif(not SHARED.exists(), reason=f"the optional file {SHARED} does not exist")
def test_shared_questions() -> None:
    """The questions of three data sets beside the checkout can be loaded."""
    tasks = load_tasks(str(SHARED))
    assert len(tasks) == 1325
    assert sum(bool(task.data["gold"]) for task in tasks) == 200


@pytest.mark.parametrize(
    ("answer", "golds", "em", "f1", "cover"),
    [
        ("The Anglican Communion!", ["the Anglican Communion"], 1, 1, 1),
        ("G. Stanley Hall", ["Stanley Hall", "G Stanley Hall"], 1, 1, 1),
        ("It was Stanley Hall, I think", ["Stanley Hall"], 0, 0.5, 1),
        ("yes, they were", ["yes"], 0, 0, 1),
        ("no", ["yes"], 0, 0, 0),
        ("1935", ["35"], 0, 0, 0),
        ("", ["x"], 0, 0, 0),
        ("The...", ["a"], 0, 0, 0),
        ("!", ["a", "?"], 0, 0, 0),
        (" ", ["the"], 0, 0, 0),
        ("B", ["A"], 0, 0, 0),
        ("(a)", ["A"], 1, 1, 1),
        ("Hall Stanley", ["Stanley Hall"], 0, 1, 0),
    ],
)
def test_scores(answer: str, golds: list[str], em: float, f1: float, cover: float) -> None:
    """EM, F1 and cover with the field's normalisation; the best gold counts."""
    assert score_answer(answer, golds) == pytest.approx((em, f1, cover))


def test_normalisation() -> None:
    """Case, punctuation, articles and blanks don't count."""
    assert normalize_answer(" The  U.S.-based, An apple ") == "usbased apple"


def test_the_corpus_is_what_its_command_writes(tmp_path: Path) -> None:
    """The committed files are what the documented command writes, byte for byte."""
    command = [sys.executable, "-m", "tests.search.world", str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    for name in ("passages.jsonl", "questions.jsonl"):
        assert (tmp_path / name).read_bytes() == builtin_file(name).read_bytes()


def test_the_invented_world_is_consistent() -> None:
    """Names are unique, and every hop's answer stands in its passage or follows from two."""
    world = World()
    texts = {p["title"]: p["text"] for p in world.passages}
    assert len(texts) == len(world.passages) == 308
    for question in ask(world):
        assert len(question["gold"]) == len(question["gold_titles"]) >= 2
        told = " ".join(texts[title] for title in question["gold_titles"])
        for hop in question["hops"]:
            assert hop["answer"] in told
        assert question["answers"][0] in told or question["answers"][0] in {"yes", "no"}
    for person in world.things["person"]:
        if person["teacher"]:
            assert world.find(person["teacher"])["born"] < person["born"]


async def test_every_builtin_question_can_be_answered_by_searching() -> None:
    """Following the hops shows every supporting passage within three hits per query."""
    from trajgym.envs.search import SearchRecord, open_engine
    from trajgym.envs.search._demo import _queries

    async with open_engine("builtin") as engine:
        for task in load_tasks("builtin"):
            record = SearchRecord.of(task)
            found = await engine.search(_queries(record), 3)
            assert set(record.gold) <= {hit.passage.id for hits in found for hit in hits}
