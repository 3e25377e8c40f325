"""Data sets of Parquet files: an equal run comes back, and `datasets` reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.datasets.runs import contents, grouped_run, tree, write_run
from tests.strategies import exact_trees
from tests.worlds import PNG
from trajgym.adapters.exports.dataset import read_dataset, write_dataset
from trajgym.cli import app
from trajgym.trajectory import InvalidInput, Run, Sampling, SessionTree, Task, Usage, Wire
from trajgym.trajectory.datasets import filter_run, name_dataset

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=3)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(exact_trees(max_turns=8, group=None), min_size=1, max_size=3),
    st.lists(OBJECTS, min_size=3, max_size=3),
    st.integers(0, 2),
)
def test_an_equal_run_comes_back(
    trees: list[SessionTree], values: list[dict[str, Any]], texts: int
) -> None:
    """Any session tree, of exact and text turns, with values of any shape."""
    for n, one in enumerate(trees):
        one.record.id, one.record.task = f"s{n}", f"t{n}"
        one.record.seed, one.record.labels = n or None, {"a": "b"} if n else {}
        for turn in one.turns:
            turn.signals, turn.message["extra"] = values[0], values[1]
            if n == texts:
                turn.tokens = None
                turn.usage, turn.sampling = Usage(prompt_tokens=3), Sampling(top_k=5)
                turn.wire = Wire(call="c", dialect="chat", hints={"x": "y"})
        for attempt in one.attempts:
            if attempt.outcome is not None:
                attempt.outcome.details = values[2]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tasks = [Task(id=f"t{n}", data=value) for n, value in enumerate(values)]
        write_run(home / "run", trees, tasks=tasks, more=True)
        write_dataset(home / "run", home / "data")
        assert read_dataset(home / "data", home / "again") == len(trees)
        assert contents(home / "again") == contents(home / "run")
        with Run(home / "again") as again, Run(home / "run") as run:
            assert again.meta() == run.meta()
            assert again.check() == []
            assert [s.record.id for s in again.summaries()] == [f"s{n}" for n in range(len(trees))]


def test_groups_images_and_names_come_back(tmp_path: Path) -> None:
    """Groups with members that left, every blob, lineage and name; commands do the same."""
    grouped_run(tmp_path / "run", tasks=3)
    filter_run(tmp_path / "run", tmp_path / "some", "turns < 3")
    name_dataset(tmp_path / "some", "team/counting-v0", versions={"counting": "1.2"})

    def said(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["dataset", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.output

    text = said("export", tmp_path / "some", "--out", tmp_path / "data", "--licence", "MIT")
    assert "  sessions: 6\n  turns: 9\n" in text
    assert "6 sessions" in said("import", tmp_path / "data", "--out", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "some")
    with Run(tmp_path / "again") as again, Run(tmp_path / "some") as run:
        assert again.meta() == run.meta()
        (name,) = again.blobs()
        assert again.blob(name) == (PNG, "image/png")


def test_the_card(tmp_path: Path) -> None:
    """It has environment, versions, counts, statistics, licences and lineage, as Markdown."""
    grouped_run(tmp_path / "run", tasks=3)
    trees = [tree("x|y", task="free", score=0.5)]
    write_run(tmp_path / "other", trees, tasks=[Task(id="free", data={"license": "Apache-2.0"})])
    filter_run(tmp_path / "run", tmp_path / "some", "turns < 3")
    name_dataset(tmp_path / "some", "team/counting-v0", versions={"counting": "1.2"})
    write_dataset(tmp_path / "some", tmp_path / "data", licence="MIT")
    card = (tmp_path / "data" / "README.md").read_text()
    for text in (
        'license: "mit"',
        "- config_name: sessions\n  data_files: data/sessions/*.parquet\n  default: true",
        "# team/counting-v0",
        "| `e` | `{}` | 6 |",
        "Versions: counting 1.2.",
        "| attempts | 4 completed, 2 failed:env |",
        "| passed | 1 of 4 scored attempts |",
        "| tasks solved at least once | 1 of 2 |",
        "| mean solve rate of tasks | 0.25 |",
        "2 unknown",
        '1. `filter` `{"match": "any", "where": "turns < 3"}` of an unnamed run (9 sessions,',
    ):
        assert text in card, card
    assert str(tmp_path) not in card
    write_dataset(tmp_path / "other", tmp_path / "free")
    assert "1 Apache-2.0" in (tmp_path / "free" / "README.md").read_text()


SCRIPT = """
import json, sys
from datasets import load_dataset
out = {}
turns = load_dataset(sys.argv[1], "turns", split="train", streaming=True)
out["message"] = [json.loads(turn["message"])["content"] for turn in turns]
out["keys"] = sorted(json.loads(next(iter(turns))["message"]))
sessions = load_dataset(sys.argv[1], split="train")
out["sessions"] = list(sessions["id"])
out["score"] = sessions[0]["attempts"][0]["score"]
image = load_dataset(sys.argv[1], "images", split="train")[0]["image"]
out["image"] = [type(image).__name__, image.size]
print(json.dumps(out))
"""


def test_datasets_loads_every_table(tmp_path: Path) -> None:
    """`datasets` finds the tables by the card, streams them and decodes the images."""
    grouped_run(tmp_path / "run", tasks=2, samples=2)
    write_dataset(tmp_path / "run", tmp_path / "data")
    (tmp_path / "load.py").write_text(SCRIPT)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, tmp_path / "load.py", tmp_path / "data"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "message": ["0"] * 6,
        "keys": ["content", "role"],
        "sessions": ["t0-0", "t0-1", "t1-0", "t1-1"],
        "score": 0.0,
        "image": ["PngImageFile", [1, 1]],
    }


def test_what_can_not_be_read_or_written(tmp_path: Path) -> None:
    """Mistakes are named, and nothing half-made is left."""
    grouped_run(tmp_path / "run", tasks=2)
    write_dataset(tmp_path / "run", tmp_path / "data")
    with pytest.raises(InvalidInput, match="not empty"):
        write_dataset(tmp_path / "run", tmp_path / "data")
    with pytest.raises(InvalidInput, match="not empty"):
        read_dataset(tmp_path / "data", tmp_path / "run")
    with pytest.raises(InvalidInput, match="no data set here"):
        read_dataset(tmp_path / "run", tmp_path / "again")
    turns = tmp_path / "data" / "data" / "turns" / "00000.parquet"
    table = pyarrow.parquet.read_table(turns)
    pyarrow.parquet.write_table(table.slice(1), turns)
    with pytest.raises(InvalidInput, match="does not have the turns that it states"):
        read_dataset(tmp_path / "data", tmp_path / "again")
    pyarrow.parquet.write_table(table.drop_columns(["edge"]), turns)
    with pytest.raises(InvalidInput, match="column 'edge' is missing"):
        read_dataset(tmp_path / "data", tmp_path / "again")
    turns.write_bytes(turns.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="can't be read"):
        read_dataset(tmp_path / "data", tmp_path / "again")
    pyarrow.parquet.write_table(table.replace_schema_metadata({}), turns)
    with pytest.raises(InvalidInput, match="not a table of a trajgym data set"):
        read_dataset(tmp_path / "data", tmp_path / "again")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "run"]
