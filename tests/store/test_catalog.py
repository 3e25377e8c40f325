"""Catalogues: lists, search and figures agree with the run, also while it is written."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.records import record, turn
from tests.viewer.runs import write_group, write_run
from trajgym.trajectory import (
    Attempt,
    InvalidInput,
    Outcome,
    Run,
    Status,
    Store,
    StoreCorrupt,
    StoreError,
)
from trajgym.trajectory.catalog import Catalog, SessionFilter
from trajgym.trajectory.catalog._text import match_of, words_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything in it."""
    path = tmp_path_factory.mktemp("catalog") / "run"
    write_run(path)
    return path


@pytest.fixture
def catalog(run: Path, tmp_path: Path) -> Catalog:
    """Its catalogue, complete."""
    found = Catalog(run, path=tmp_path / "c.db")
    while not found.refresh():
        pass
    return found


def ids(catalog: Catalog, **chosen: object) -> list[str]:
    return [row["id"] for row in catalog.sessions(SessionFilter(**chosen)).rows]  # type: ignore[arg-type]


def test_figures_are_those_of_the_run(catalog: Catalog, run: Path) -> None:
    """Turns, calls, outcomes and statuses are what reading every session finds."""
    with Run(run) as whole:
        trees = list(whole.sessions())
    rows = {row["id"]: row for row in catalog.sessions(limit=500).rows}
    assert list(rows) == [tree.record.id for tree in trees]
    for tree in trees:
        row = rows[tree.record.id]
        calls = [c for t in tree.turns if not t.simulated for c in t.calls]
        scores = [a.outcome.score for a in tree.attempts if a.outcome is not None]
        assert row["turns"] == len(tree.turns)
        assert row["calls"] == len(calls)
        assert row["attempts"] == len(tree.attempts)
        assert row["score"] == max(scores, default=None)
        assert row["status"] == str(tree.attempts[0].status)
        assert row["exact"] == sum(t.exact for t in tree.turns if not t.simulated)
    statuses = Counter(str(a.status) for tree in trees for a in tree.attempts)
    assert catalog.totals()["statuses"] == statuses


def test_filters_combine(catalog: Catalog) -> None:
    """Each field narrows the list; several values of one field are alternatives."""
    assert ids(catalog, group="g1") == ["g1-0", "g1-1", "g1-2", "g1-3"]
    assert ids(catalog, group="g1", outcome=["solved"]) == ["g1-0", "g1-2"]
    assert ids(catalog, group="g1", outcome=["unsolved", "unscored"]) == ["g1-1", "g1-3"]
    assert ids(catalog, task=["cart-total"], tool=["edit"]) == ["g1-0", "g1-2"]
    assert ids(catalog, group="g1", status=["failed:sandbox"]) == ["g1-3"]
    assert ids(catalog, task=["cart-total"], min_turns=4) == ["g1-0", "g1-1"]
    assert ids(catalog, min_reward=0.9, task=["cart-total"]) == ["g1-0"]
    assert ids(catalog, task=["cart-total"], max_score=0.5) == ["g1-1"]
    cause = "the container exited with status N after N s"
    assert cause in [one["reason"] for one in catalog.failures()]
    assert ids(catalog, cause=cause) == ["g1-3"]
    with pytest.raises(InvalidInput, match="outcome 'maybe'"):
        catalog.sessions(SessionFilter(outcome=["maybe"]))
    with pytest.raises(InvalidInput, match="sort 'colour'"):
        catalog.sessions(sort="colour")  # type: ignore[arg-type]


def test_search_finds_words_phrases_and_what_lacks_them(catalog: Catalog) -> None:
    """Messages, reasoning, arguments, results, ids and tasks are searched."""
    assert ids(catalog, text="missing from the sum") == ["g1-0"]
    assert ids(catalog, text='"item.count for item"', group="g1") == ["g1-0", "g1-2"]
    assert ids(catalog, text="pyte", group="g1") == ["g1-0"]
    assert ids(catalog, text="careful -passed", group="g1") == ["g1-1", "g1-2", "g1-3"]
    assert ids(catalog, text="cart-total g1-2") == ["g1-2"]
    assert ids(catalog, text="'); DROP TABLE sessions") == []
    assert ids(catalog, text="***") == []


@given(st.text(max_size=40))
def test_any_text_is_a_query(text: str) -> None:
    """No text is a syntax error of the search engine."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE t USING fts5 (body)")
    database.execute("INSERT INTO t VALUES (?)", ["some words"])
    if match := match_of(text):
        database.execute("SELECT rowid FROM t WHERE t MATCH ?", [match]).fetchall()
        assert words_of(text)
    database.close()


def test_groups_have_their_scores(catalog: Catalog) -> None:
    """A group lists its attempts; those whose scores differ can be chosen."""
    page = catalog.groups(mixed=True, sort="spread", descending=True)
    (group,) = [row for row in page.rows if row["id"] == "g1"]
    assert (group["members"], group["left"], group["sealed"]) == (4, 1, 1)
    assert (group["scored"], group["solved"]) == (3, 2)
    assert group["mean"] == pytest.approx(2 / 3)
    assert group["spread"] == pytest.approx(0.4714045)
    assert [one["passed"] for one in group["attempts"]] == [1, 0, 1, None]
    with pytest.raises(InvalidInput, match="sort"):
        catalog.groups(sort="colour")


def test_a_session_is_found_by_the_start_of_its_id(catalog: Catalog) -> None:
    """As in every command."""
    assert catalog.find("hos") == "hostile"
    with pytest.raises(InvalidInput, match="several"):
        catalog.find("g1-")
    with pytest.raises(InvalidInput, match="no session"):
        catalog.find("%")


def test_a_run_is_followed_while_it_is_written(tmp_path: Path) -> None:
    """Turns, ends, forks, later rewards and further files appear with the next refresh."""
    path, place = tmp_path / "run", tmp_path / "c.db"
    with Store(path) as store, Catalog(path, path=place) as catalog:
        store.begin_session(record("a"))
        store.append_turn("a", turn(0, "first words")).wait()
        assert catalog.refresh(30)
        (row,) = catalog.sessions().rows
        assert (row["status"], row["turns"], row["reward"]) == ("running", 1, None)
        assert catalog.progress().live
        revision = catalog.progress().revision
        assert catalog.refresh(30)
        assert catalog.progress().revision == revision  # nothing new, nothing changed
        store.append_turn("a", turn(1, "second thoughts"))
        store.amend_turn("a", 0, reward=0.25)
        outcome = Outcome(score=0.5, passed=False)
        store.put_attempt("a", Attempt(leaf=1, status=Status("completed"), outcome=outcome)).wait()
        store.wake()
        with Store(path / "other.sqlite") as other:
            other.begin_session(record("b")).wait()
            store.put_attempt("a", Attempt(index=1, forked_at=0)).wait()
            store.append_turn("a", turn(2, "rival")).wait()
            assert catalog.refresh(30)
            assert ids(catalog, text="second") == ids(catalog, text="rival") == ["a"]
            rows = {row["id"]: row for row in catalog.sessions().rows}
            assert (rows["a"]["turns"], rows["a"]["score"], rows["a"]["reward"]) == (3, 0.5, 0.25)
            assert rows["a"]["attempts"] == 2
            assert ids(catalog, status=["running"]) == ["a", "b"]
    with Catalog(path, path=place) as catalog:  # their writers are gone
        catalog.refresh(30)
        assert ids(catalog, status=["interrupted"]) == ["a", "b"]
        assert not catalog.progress().live


def test_a_replaced_run_is_read_anew(tmp_path: Path) -> None:
    """A catalogue does not outlive what it describes; a damaged one is made again."""
    path, place = tmp_path / "run", tmp_path / "c.db"
    with Store(path) as store:
        write_group(store)
    with Catalog(path, path=place) as catalog:
        catalog.refresh(30)
        assert len(ids(catalog)) == 4
        shutil.rmtree(path)
        with Store(path) as store:
            store.begin_session(record("new")).wait()
        catalog.refresh(30)
        assert ids(catalog) == ["new"]
        assert ids(catalog, text="careful") == []
    place.write_bytes(b"not a database" * 1000)
    with Catalog(path, path=place) as catalog:
        catalog.refresh(30)
        assert ids(catalog) == ["new"]
        catalog.close()
        with pytest.raises(StoreError, match="closed"):
            catalog.sessions()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """Files that are no store are reported, and the catalogue stays usable."""
    with pytest.raises(StoreError, match="no run here"):
        Catalog(tmp_path / "none", path=tmp_path / "c.db")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "store.sqlite").write_bytes(b"x" * 4096)
    with Catalog(tmp_path / "run", path=tmp_path / "c.db") as catalog:
        with pytest.raises(StoreCorrupt):
            catalog.refresh(30)
        assert ids(catalog) == []


def test_a_full_disk_is_named_and_lost_nothing(tmp_path: Path) -> None:
    """The error is that of the disk, not of what is undone for it; later the catalogue is whole."""
    with Store(tmp_path / "run") as store:
        for number in range(300):
            store.begin_session(record(f"s{number}"))
            store.append_turn(f"s{number}", turn(0))
    with Catalog(tmp_path / "run", path=tmp_path / "c.db") as catalog:
        ((pages,),) = catalog._writer.execute("PRAGMA page_count")
        catalog._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="disk is full"):
            catalog.refresh(60)
        catalog._writer.execute("PRAGMA max_page_count = 1000000")
        assert catalog.refresh(60)
        assert catalog.progress().turns == 300
