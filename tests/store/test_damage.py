"""Damaged and half-copied files are told from healthy ones, and named."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.store.records import record, turn
from trajgym.trajectory import (
    FollowedRun,
    Run,
    SessionRecord,
    Store,
    StoreCorrupt,
    StoreError,
    StoreSchemaMismatch,
)


def test_a_file_without_tables_does_not_hide_the_others(tmp_path: Path) -> None:
    """A writer that was killed before it created its tables leaves a run that reads and goes on."""
    with Store(tmp_path / "a.sqlite") as a:
        a.begin_session(record("one")).wait()
    (tmp_path / "b.sqlite").touch()
    with sqlite3.connect(tmp_path / "c.sqlite") as begun:
        begun.execute("PRAGMA journal_mode = WAL")
    begun.close()
    with Run(tmp_path) as run, FollowedRun(tmp_path) as followed:
        assert [s.record.id for s in run.sessions()] == ["one"]
        assert [one.id for one in followed.poll().sessions] == ["one"]
        assert run.check() == []
        assert len(run.files) == 3
    for name in ("b.sqlite", "c.sqlite"):
        with pytest.raises(StoreCorrupt, match="an empty file"):
            Run(tmp_path / name)
        Store(tmp_path / name).close()
    with Run(tmp_path) as run:
        assert [s.record.id for s in run.sessions()] == ["one"]


@pytest.mark.parametrize("damage", ["truncate", "garbage", "not a store", "newer", "page"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    """A damaged or foreign file is an error that names the file and the remedy."""
    with Store(tmp_path) as store:
        store.begin_session(record())
        for i in range(200):
            store.append_turn("s", turn(i, "y" * 1000))
    file = tmp_path / "store.sqlite"
    size = file.stat().st_size
    expected: type[StoreError] = StoreCorrupt
    if damage == "truncate":
        os.truncate(file, size // 2)
    elif damage == "garbage":
        file.write_bytes(b"\x00garbage" * 1000)
    elif damage == "not a store":
        file.unlink()
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE notes (text)")
        other.close()
    elif damage == "newer":
        with sqlite3.connect(file) as other:
            other.execute("PRAGMA user_version = 99")
        other.close()
        expected = StoreSchemaMismatch
    else:
        with file.open("r+b") as raw:
            raw.seek(8192)
            raw.write(b"\xff" * (size - 16384))
    with pytest.raises(expected, match=str(file)), Run(tmp_path) as run:
        list(run.sessions())
    if damage != "page":
        with pytest.raises(expected, match=str(file)):
            Store(tmp_path)
    else:
        with Run(tmp_path) as damaged:
            assert damaged.check()


def test_missing_run(tmp_path: Path) -> None:
    """Reading a directory without a run is an error that names it."""
    with pytest.raises(StoreError, match="no run here"):
        Run(tmp_path)
    with pytest.raises(StoreError, match="no such store"):
        Run(tmp_path / "x.sqlite")


def half_copied(source: Path, target: Path) -> None:
    """Copy an open store as SIGKILL leaves it when it hits the copying of the log into the file.

    The header has been copied, and counts pages that only the log holds.
    """
    target.mkdir()
    for name in ("store.sqlite", "store.sqlite-wal"):
        shutil.copy(source / name, target / name)
    file, log = target / "store.sqlite", target / "store.sqlite-wal"
    frames = log.read_bytes()[32:]
    size = 24 + 4096
    headers = [f for i in range(0, len(frames), size) if (f := frames[i : i + size])[:4] == PAGE_1]
    with file.open("r+b") as out:
        out.write(headers[-1][24:])


PAGE_1 = (1).to_bytes(4, "big")


def test_killed_while_the_log_is_copied(tmp_path: Path) -> None:
    """A header that is ahead of the file's length is no damage while the log has the pages."""
    with Store(tmp_path / "live") as store:
        store.begin_session(record())
        for index in range(40):
            store.append_turn("s", turn(index, "z" * 5000)).wait()
        half_copied(tmp_path / "live", tmp_path / "dead")
    file = tmp_path / "dead" / "store.sqlite"
    assert file.stat().st_size < int.from_bytes(file.read_bytes()[28:32], "big") * 4096
    with Run(tmp_path / "dead") as run:
        assert len(run.session("s").turns) == 40
    with Store(tmp_path / "dead") as store:
        store.append_turn("s", turn(40)).wait()
    with Run(tmp_path / "dead") as run:
        assert run.check() == []
        assert len(run.session("s").turns) == 41


def test_pages_that_no_log_holds_are_damage(tmp_path: Path) -> None:
    """A writer that finds a log still notices a file that was cut off."""
    with Store(tmp_path / "live") as store:
        store.begin_session(record())
        for index in range(40):
            store.append_turn("s", turn(index, "z" * 5000)).wait()
    shutil.copytree(tmp_path / "live", tmp_path / "dead")
    with Store(tmp_path / "live") as store:
        store.set_meta("more", "x").wait()
        shutil.copy(tmp_path / "live/store.sqlite-wal", tmp_path / "dead/store.sqlite-wal")
    with (tmp_path / "dead/store.sqlite").open("r+b") as file:
        file.truncate(20 * 4096)
    with pytest.raises(StoreCorrupt, match=r"truncated|damaged"):
        Store(tmp_path / "dead")


def test_a_listing_of_a_damaged_record_names_the_file(tmp_path: Path) -> None:
    """A record that is not JSON is damage, also where only a part of it is read."""
    with Store(tmp_path) as store:
        store.begin_session(SessionRecord(id="s", task="t", env={}))
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE sessions SET body = CAST('{\"id\":' AS BLOB)")
    connection.close()
    with Run(tmp_path) as run, pytest.raises(StoreCorrupt, match=r"store\.sqlite"):
        list(run.attempt_summaries())
