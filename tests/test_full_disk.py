"""On a full disk, nothing reports success for what it did not store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.datasets.runs import write_run
from tests.store.records import record, turn
from trajgym.adapters.exports.dataset import read_dataset, write_dataset
from trajgym.adapters.interchange import import_run
from trajgym.cli import app
from trajgym.trajectory import (
    Attempt,
    Group,
    Member,
    Outcome,
    SessionTree,
    Status,
    StoreError,
    _file,
)

LARGE = "z" * 1_000_000
ENDED = Attempt(leaf=2, status=Status("completed"), outcome=Outcome(score=1.0, passed=True))


@pytest.fixture
def nearly_full(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Leave every file that is opened from now on room for some pages of 4 KiB more."""
    connect = _file.connect_writer

    def leave(pages: int) -> None:
        def connected(path: Path, *, power_safe: bool) -> sqlite3.Connection:
            connection = connect(path, power_safe=power_safe)
            used = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {used + pages}")
            return connection

        monkeypatch.setattr(_file, "connect_writer", connected)

    return leave


def test_a_dataset_with_a_turn_that_does_not_fit(
    tmp_path: Path, nearly_full: Callable[[int], None]
) -> None:
    """The session's end would fit after its large turn was refused; the copy is no run."""
    tree = SessionTree(record(), [turn(0), turn(1, LARGE), turn(2)], [ENDED])
    write_dataset(write_run(tmp_path / "run", [tree]), tmp_path / "data")
    nearly_full(60)
    with pytest.raises(StoreError, match="full"):
        read_dataset(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_import_with_a_turn_that_does_not_fit(
    tmp_path: Path, nearly_full: Callable[[int], None]
) -> None:
    """A conversation without its large answer is not reported as imported."""
    user = {"role": "user", "content": "go on"}
    says = [user, {"role": "assistant", "content": LARGE}, user]
    lines = {"messages": [*says, {"role": "assistant", "content": "done"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(lines))
    nearly_full(60)
    with pytest.raises(StoreError, match="full"):
        import_run("openai-chat", tmp_path / "a.jsonl", tmp_path / "run")


def test_rewards_that_do_not_fit(tmp_path: Path, nearly_full: Callable[[int], None]) -> None:
    """The command fails, although it waits for few of its writes."""
    tree = SessionTree(record(), [turn(i) for i in range(20_000)], [ENDED])
    tree.record.group = "g"
    group = Group(id="g", task="t", planned=1, members=[Member("s", 0, "")], sealed=True)
    run = write_run(tmp_path / "run", [tree], [group])
    nearly_full(8)
    result = CliRunner().invoke(app, ["reward", str(run), "--with", "outcome"])
    assert "1 writes for which nothing waited have failed" in str(result.exception)
    assert "Stored" not in result.output
