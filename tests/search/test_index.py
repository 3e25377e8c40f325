"""Indexes: streaming, resumable, checked."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from trajgym.envs.search import (
    BM25Engine,
    IndexMismatch,
    InvalidCorpus,
    Passage,
    SqliteEngine,
    build_bm25,
    build_dense,
    build_index,
    check_index,
    read_passages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = [
    {"id": f"d{i}", "title": f"Title {i}", "text": f"text number {i} of many"} for i in range(9)
]


def passages(n: int) -> Iterator[Passage]:
    for i in range(n):
        yield Passage(f"d{i}", f"Title {i}", f"text number {i} of many")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet"])
def test_every_file_format_gives_the_same_index(tmp_path: Path, name: str) -> None:
    """The same passages have the same hash, whichever file they come from."""
    report = build_index(read_passages([write(tmp_path / name, ROWS)]), tmp_path / "index")
    assert (report.passages, report.added) == (9, 9)
    assert report.hash == build_index(passages(9), tmp_path / "other").hash


def test_passage_forms(tmp_path: Path) -> None:
    """Wire contents, BEIR rows and passages without an id are read; repeated ones count once."""
    rows = [
        {"id": 7, "contents": '"Salt"\ntide salt'},
        {"_id": "b", "title": "Eel", "text": "smoked eel"},
        {"title": "Eel", "text": "smoked eel"},
        {"title": "Eel", "text": "smoked eel"},
    ]
    found = list(read_passages([write(tmp_path / "a.jsonl", rows)]))
    assert found[0] == Passage("7", "Salt", "tide salt")
    assert found[2].id == found[3].id
    report = build_index(found, tmp_path / "index")
    assert (report.passages, report.repeated) == (3, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"title": "only"}, "a.jsonl:2: no passage"),
        ({"id": "d1", "text": "something else"}, "'d1' stands for two different passages"),
        ([1], "a.jsonl:2: expected an object"),
    ],
)
def test_bad_records_are_named(tmp_path: Path, row: Any, message: str) -> None:
    """A record that is no passage stops the build with file and line."""
    file = write(tmp_path / "a.jsonl", [ROWS[1], row])
    with pytest.raises(InvalidCorpus, match=message):
        build_index(read_passages([file]), tmp_path / "index")


def test_a_finished_index_is_left_alone(tmp_path: Path) -> None:
    """Building again does nothing; other or further passages are refused."""
    build_index(passages(20), tmp_path)
    assert build_index(passages(20), tmp_path).added == 0
    with pytest.raises(IndexMismatch, match="other passages"):
        build_index(passages(19), tmp_path)
    with pytest.raises(IndexMismatch, match="more passages"):
        build_index(passages(21), tmp_path)
    with pytest.raises(IndexMismatch, match="other passages"):
        build_index((Passage(p.id, p.title, p.text + "!") for p in passages(20)), tmp_path)


BUILD = """
import sys
from tests.search.test_index import passages
from trajgym.envs.search import build_index
def note(n):
    print(n, flush=True)
    if n == 1500:
        sys.stdin.read()  # killed here
build_index(passages(3000), sys.argv[1], on_progress=note, batch=500)
"""


def test_a_killed_build_goes_on(tmp_path: Path) -> None:
    """SIGKILL loses nothing that was stored; the result is that of an undisturbed build."""
    target = tmp_path / "index"
    child = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(3)][-1] == "1500\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    with pytest.raises(IndexMismatch, match="not finished"):
        SqliteEngine(target)
    seen: list[int] = []
    report = build_index(passages(3000), target, on_progress=seen.append, batch=500)
    assert report.added == 1500
    assert seen == [500, 1000, 1500, 2000, 2500, 3000]
    assert check_index(target) == report._replace(added=0)
    assert report.hash == build_index(passages(3000), tmp_path / "other").hash


def test_damage_is_found(tmp_path: Path) -> None:
    """A passage that was changed from outside no longer matches the index's hash."""
    build_index(passages(20), tmp_path)
    build_bm25(tmp_path)
    connection = sqlite3.connect(tmp_path / "passages.sqlite")
    connection.execute("UPDATE passages SET text = 'forged' WHERE n = 3")
    connection.commit()
    connection.close()
    with pytest.raises(IndexMismatch, match="not those that were indexed"):
        check_index(tmp_path)


def test_bm25_files_of_other_passages_are_refused(tmp_path: Path) -> None:
    """The files beside an index must have been made from it."""
    build_index(passages(20), tmp_path / "a")
    build_index(passages(30), tmp_path / "b")
    assert build_bm25(tmp_path / "a")
    assert not build_bm25(tmp_path / "a")
    (tmp_path / "a" / "bm25").rename(tmp_path / "b" / "bm25")
    with pytest.raises(IndexMismatch, match="--with bm25"):
        BM25Engine(tmp_path / "b", compiled=False)
    with pytest.raises(IndexMismatch, match="--with bm25"):
        BM25Engine(tmp_path / "a", compiled=False)


def test_contexts_of_questions_are_a_corpus(tmp_path: Path) -> None:
    """Questions with context become passages, each once, with the ids that their tasks name."""
    from trajgym.envs.search import load_tasks

    context = [["Salt", ["Tide salt.", " It is white."]], ["Eel", ["Smoked eel."]]]
    rows = [
        {"_id": f"q{i}", "question": "Q?", "answer": "A", "context": context,
         "supporting_facts": [["Salt", 1]]}
        for i in range(2)
    ]  # fmt: skip
    file = write(tmp_path / "hotpot.json", rows)
    assert build_index(read_passages([file]), tmp_path / "index").passages == 2
    gold = load_tasks(str(file))[0].data["gold"]
    names = {p.id: p for p in read_passages([file])}
    assert [names[g].text for g in gold] == ["Tide salt. It is white."]


class Letters:
    """An encoder that counts letters."""

    name, size = "letters", 26

    def __init__(self) -> None:
        self.encoded = 0
        self.stop_after = 10**9

    def encode(self, texts: Any) -> Any:
        import numpy as np

        if self.encoded >= self.stop_after:
            raise KeyboardInterrupt
        self.encoded += len(texts)
        counts = np.array(
            [[t.lower().count(chr(97 + i)) + 1e-3 for i in range(26)] for t in texts], np.float32
        )
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


async def test_dense_vectors_resume_and_search(tmp_path: Path) -> None:
    """Encoding resumes after a stop, and the engine finds the nearest passage."""
    from trajgym.envs.search import DenseEngine, check_engine

    build_index(passages(1100), tmp_path)
    first = Letters()
    first.stop_after = 1024
    with pytest.raises(KeyboardInterrupt):
        build_dense(tmp_path, encoder=first)
    with pytest.raises(IndexMismatch, match="--with dense"):
        DenseEngine(tmp_path, encoder=Letters())
    second = Letters()
    assert build_dense(tmp_path, encoder=second)
    assert second.encoded == 76
    assert not build_dense(tmp_path, encoder=second)
    async with DenseEngine(tmp_path, encoder=Letters()) as engine:
        await check_engine(engine, ["number of texts", "title many"])


def test_an_index_of_another_user_is_named(tmp_path: Path) -> None:
    """Files that this user may not read are an error of their own, not a missing index."""
    build_index(passages(3), tmp_path)
    file = tmp_path / "passages.sqlite"
    file.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        with pytest.raises(IndexMismatch, match="may not read it; give the folder"):
            SqliteEngine(tmp_path)
    finally:
        os.seteuid(user)
