"""Tasks from every kind of source, and typed data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import Json

from tests.rubrics import world
from trajgym.envs import Env, EnvSpec, TaskData, load_tasks, registered
from trajgym.envs.users import UserData, open_user
from trajgym.trajectory import InvalidInput, Task

assert world


class Sum(TaskData):
    numbers: Json[list[int]] | list[int]
    answer: int
    unit: str = "apples"


class Sums(Env):
    task_data = Sum


ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "3 + 4?", "numbers": [3, 4], "answer": 7},
    {"id": "b", "prompt": "5?", "numbers": [5], "answer": 5, "unit": "pears"},
]


def nested() -> Iterator[dict[str, Any]]:
    """The rows in our own form."""
    for row in ROWS:
        row = dict(row)
        yield {"id": row.pop("id"), "prompt": row.pop("prompt"), "data": row}


def files(folder: Path) -> dict[str, str]:
    """The same tasks, written in every format."""
    folder.mkdir(exist_ok=True)
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in nested()))
    (folder / "t.json").write_text(json.dumps(list(nested())))
    with (folder / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "prompt", "numbers", "answer", "unit"])
        writer.writeheader()
        writer.writerows({**row, "numbers": json.dumps(row["numbers"])} for row in ROWS)
    parquet.write_table(pa.Table.from_pylist(ROWS, _SCHEMA), folder / "t.parquet")
    parquet.write_table(pa.Table.from_pylist(ROWS, _SCHEMA), folder / "train.parquet")
    saved = datasets.Dataset.from_list([{"unit": None, **row} for row in ROWS])
    saved.save_to_disk(str(folder / "saved"))
    datasets.DatasetDict({"test": saved}).save_to_disk(str(folder / "splits"))
    single = folder / "single"
    single.mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(ROWS, _SCHEMA), single / "train.parquet")
    return {
        **{kind: str(folder / f"t.{kind}") for kind in ("jsonl", "json", "csv", "parquet")},
        "saved": f"hf:{folder / 'saved'}:train",
        "splits": f"hf:{folder / 'splits'}:test",
        "folder of files": f"hf:{single}:train",
        "generator": "tests.test_tasks:nested",
    }


_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", pa.string()),
        ("numbers", pa.list_(pa.int64())),
        ("answer", pa.int64()),
        ("unit", pa.string()),
    ]
)


def test_every_source_gives_the_same_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSONL, JSON, CSV, Parquet, data sets and a generator: equal tasks, typed alike."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name, source in files(tmp_path / "d").items():
        tasks = Sums.load_tasks(source)
        assert [(task.id, task.prompt) for task in tasks] == [("a", "3 + 4?"), ("b", "5?")], name
        data = [Sum.of(task) for task in tasks]
        assert [one.numbers for one in data] == [[3, 4], [5]], name
        assert [(one.answer, one.unit) for one in data] == [(7, "apples"), (5, "pears")], name
        for task in tasks:
            json.dumps(task.data, allow_nan=False)


def test_objects_are_a_source_too() -> None:
    """Tasks, dicts, and a function that gives them."""
    tasks = load_tasks(nested, data=Sum)
    assert load_tasks(tasks) == load_tasks(iter(nested())) == tasks


def test_columns_with_other_names_and_rows_without_ids(tmp_path: Path) -> None:
    """A table is taken as it is: two columns are chosen by name, ids come from the place."""
    file = tmp_path / "questions.csv"
    file.write_text("question,answer\nHow many?,3\n")
    (task,) = load_tasks(file, columns={"prompt": "question"})
    assert task == Task(id="questions-0", prompt="How many?", data={"answer": "3"})
    with pytest.raises(InvalidInput, match=r"questions\.csv:2: no column 'name' for the id"):
        load_tasks(file, columns={"id": "name"})
    with pytest.raises(InvalidInput, match="answer"):
        load_tasks(file, columns={"answer": "answer"})


def _lines(*records: dict[str, Any]) -> str:
    full = [{"data": {"numbers": [], "answer": 1}, **record} for record in records]
    return "\n".join(map(json.dumps, full))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", _lines({"id": "a"}, {"id": "b", "data": {"numbers": [1], "answer": "x"}}),
         r"t\.jsonl:2: task 'b': field 'answer': .*integer"),
        ("t.jsonl", '\n{"id": "a", "data": {"answer": 1, "unt": "kg"}}',
         r"t\.jsonl:2: task 'a': field 'numbers.*field 'unt'"),
        ("t.json", '[{"id": "a", "data": {"numbers": [1, "x"], "answer": 1}}]',
         r"t\.json\[0\]: task 'a': .*field 'numbers.*1'"),
        ("t.jsonl", '{"id": "a", "datum": {}}', r"t\.jsonl:1: task field 'datum'"),
        ("t.jsonl", '{"id": "a"', r"t\.jsonl:1: not JSON"),
        ("t.jsonl", "[1]", r"t\.jsonl:1: expected an object, got list"),
        ("t.csv", 'id,numbers,answer\na,"[1,\n2]",3\nb,[1],x\n',
         r"t\.csv:4: task 'b': field 'answer'"),
        ("t.csv", "id,numbers,answer\na,[1]\n", r"t\.csv:2: not as many cells"),
        ("t.csv", "id,id\na,b\n", r"t\.csv:1: every column needs a name"),
        ("t.csv", "id,numbers,answer\na,[1],1\na,[1],1\n",
         r"t\.csv:3: the task id 'a' is used twice, first at .*:2"),
    ],
)  # fmt: skip
def test_a_bad_row_names_file_line_and_field(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """Errors are found on load and reported with their place."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=said):
        Sums.load_tasks(str(tmp_path / name))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere.jsonl", "can't be read"),
        ("tests.test_tasks:nothing", "neither a file nor something that can be imported"),
        ("tests.nothing:rows", "neither a file nor something that can be imported"),
        ("hf:train", "write hf:NAME:SPLIT"),
        ("hf:/nowhere/at/all:train", "can't be loaded"),
    ],
)
def test_a_source_that_is_not_there(source: str, said: str) -> None:
    """Errors of each kind of source name the fault."""
    with pytest.raises(InvalidInput, match=said):
        load_tasks(source)


@pytest.mark.parametrize("value", [b"\x00", float("nan")])
def test_cells_that_are_no_json_are_refused(tmp_path: Path, value: Any) -> None:
    """Bytes and NaN can't be recorded; the row and the column are named. Dates are text."""
    file = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"id": ["a"], "x": [value]}), file)
    with pytest.raises(InvalidInput, match=r"t\.parquet\[0\]: field 'x'"):
        load_tasks(file)
    parquet.write_table(pa.table({"id": ["a"], "x": [date(2025, 5, 10)]}), file)
    assert load_tasks(file)[0].data == {"x": "2025-05-10"}


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["x", "y"]), st.text(min_size=1, max_size=8), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_csv_keeps_every_text(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    """Commas, quotes and line ends in cells come back as they were written."""
    rows = [{k: v.replace("\x00", "0") for k, v in row.items()} for row in rows]
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ["x", "y"])
    writer.writeheader()
    writer.writerows(rows)
    file = tmp_path_factory.mktemp("csv") / "t.csv"
    file.write_text(out.getvalue(), encoding="utf-8", newline="")
    assert [task.data for task in load_tasks(file)] == rows


def test_shipped_environments_state_the_type_of_their_data() -> None:
    """Whatever is registered here and has data, has a type for it; a bare task shows its fields."""
    names = set(registered()) - {"desktop-openai", "desktop-ui-tars"}
    names -= {"openenv", "verifiers"}  # their data is that of another project's environment
    # Other modules of the suite register environments of their own.
    shipped = [n for n in names if EnvSpec(id=n).resolve().__module__.startswith("trajgym.")]
    assert len(shipped) > 10
    for name in (*shipped, "trajgym.envs.gui:WebArenaEnv"):
        kind = EnvSpec(id=name).resolve().task_data
        assert kind is not None, name
        with pytest.raises(InvalidInput, match="odd"):
            kind.of(Task(id="odd", data={"nonsense": 1}))


@pytest.mark.parametrize(
    ("env", "config", "field"),
    [
        ("search", {"judge": {"model": "m"}}, "base_url"),
        ("dialogue-rental", {"user": {"odd": 1}}, "odd"),
        ("trajgym.envs.mcp:McpEnv", {"servers": [{"odd": 1}]}, "odd"),
        ("swe", {"odd": 1}, "odd"),
    ],
)
def test_a_malformed_setting_is_named_before_a_session(
    env: str, config: dict[str, Any], field: str
) -> None:
    """Settings that are objects are checked when the environment is built; one line names them."""
    with pytest.raises(InvalidInput, match=f"{env}.*invalid configuration.*{field}") as caught:
        EnvSpec(id=env, config=config).make()
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_malformed_user_is_named() -> None:
    """The same for a user that an environment of one's own opens."""
    with pytest.raises(InvalidInput, match=r"simulated user.*odd"):
        open_user({"odd": 1}, UserData(instruction="x"))
