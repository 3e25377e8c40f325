"""Runs are read while they are written, over several files, and in lists."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.store.records import record, turn
from trajgym.trajectory import (
    Attempt,
    FollowedRun,
    Group,
    Member,
    Outcome,
    Run,
    SessionRecord,
    Status,
    Store,
    StoreError,
    Turn,
)
from trajgym.trajectory._database import connect_reader, connect_writer


def test_a_lock_of_a_process_without_a_processor_is_waited_for(tmp_path: Path) -> None:
    """Locks that are held for a moment are waited for a minute, by writers and by readers."""
    with Store(tmp_path) as store:
        store.begin_session(record("s")).wait()
        (file,) = tmp_path.glob("*.sqlite")
        for connection in (connect_reader(file), connect_writer(file, power_safe=False)):
            assert connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
            connection.close()


def test_a_run_is_closed_while_threads_read_it(tmp_path: Path) -> None:
    """Closing waits for queries in other threads; later ones raise."""
    with Store(tmp_path) as store:
        for number in range(20):
            key = f"s{number}"
            store.begin_session(record(key))
            for index in range(20):
                store.append_turn(key, turn(index))
    for _ in range(10):
        run = Run(tmp_path)
        reading = threading.Barrier(5)

        def read(run: Run = run, reading: threading.Barrier = reading) -> str:
            reading.wait()
            try:
                while True:
                    list(run.sessions())
            except StoreError as error:
                return str(error)

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            reading.wait()
            next(run.summaries())
            run.close()
            assert all(reader.result().endswith("the run is closed") for reader in readers)


def test_several_files_read_as_one_run(tmp_path: Path) -> None:
    """Shards of a run are one run to the reader, while both are written."""
    with Store(tmp_path / "a.sqlite") as a, Store(tmp_path / "b.sqlite") as b:
        a.begin_session(record("one"))
        b.begin_session(record("two"))
        a.append_turn("one", turn(0)).wait()
        b.append_turn("two", turn(0)).wait()
        with Run(tmp_path) as run:
            assert [s.record.id for s in run.sessions()] == ["one", "two"]
            assert run.session("two").turns[0].message["content"] == "x"


def test_a_group_in_several_files_is_read_once(tmp_path: Path) -> None:
    """Its newest state counts: the one with more members, and of equals the sealed one."""
    one, two = Member("g-0", 0, "interrupted"), Member("g-0.1", 0, "")
    states = [
        ("a", Group(id="g", task="t", planned=1, members=[one], sealed=True)),
        ("b", Group(id="g", task="t", planned=1, members=[one, two], sealed=True)),
        ("c", Group(id="g", task="t", planned=1, members=[one, two])),
    ]
    for name, group in states:
        with Store(tmp_path / f"{name}.sqlite") as store:
            store.put_group(group).wait()
    with Run(tmp_path) as run, FollowedRun(tmp_path) as followed:
        assert list(run.groups()) == [run.group("g")] == [states[1][1]]
        found = followed.poll()
    assert (found.groups, found.sealed) == (1, 1)


def test_copy_of_a_run_is_a_run(tmp_path: Path) -> None:
    """A closed run is one plain file that can be copied."""
    with Store(tmp_path / "a") as store:
        store.begin_session(record())
        store.append_turn("s", turn(0))
        store.put_attempt("s", Attempt(leaf=0))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Run(tmp_path / "b") as run:
        assert len(run.session("s").turns) == 1


def test_listings_say_what_the_sessions_say(tmp_path: Path) -> None:
    """Summaries and their lines agree with the whole sessions, over several pages and files."""
    ends = [
        Attempt(status=Status("completed"), outcome=Outcome(score=1.0, passed=True)),
        Attempt(status=Status("truncated", "turns"), outcome=Outcome(score=-0.25, passed=False)),
        Attempt(status=Status("failed", "env"), cause='said "no"\nand\u00e9'),
        Attempt(),
    ]
    for shard in "ab":
        with Store(tmp_path / f"{shard}.sqlite") as store:
            for index in range(1200 if shard == "a" else 5):
                name = f"{shard}{index}"
                record = SessionRecord(id=name, task=f"t{index % 7}", env={}, sample=index % 3)
                store.begin_session(record)
                for turn in range(index % 4):
                    parent = turn - 1 if turn else None
                    message = {"role": "assistant", "content": "x"}
                    store.append_turn(name, Turn(index=turn, parent=parent, message=message))
                store.put_attempt(name, ends[index % 4])
                if index % 5 == 0:
                    store.put_attempt(name, replace(ends[0], index=1))
    with Run(tmp_path) as run:
        trees = list(run.sessions())
        summaries, lines = list(run.summaries()), list(run.attempt_summaries())
        assert [s.record for s in summaries] == [t.record for t in trees]
        assert [s.turns for s in summaries] == [len(t.turns) for t in trees]
        assert [str(a.status) for s in summaries for a in s.attempts] == [
            str(a.status) for t in trees for a in t.attempts
        ]
        said = [
            (t.record.id, t.record.task, t.record.sample, a.index, str(a.status), a.cause)
            for t in trees
            for a in t.attempts
        ]
        assert [(*line[:4], str(line.status), line.cause) for line in lines] == said
        outcomes = [a.outcome for t in trees for a in t.attempts]
        assert [line.score for line in lines] == [o and o.score for o in outcomes]
        assert [line.passed for line in lines] == [o is not None and o.passed for o in outcomes]
        assert {line.turns for line in lines if line.session == "a3"} == {3}
    assert {str(line.status) for line in lines if line.attempt == 0} >= {"interrupted"}


READER = """
import sys
from trajgym.trajectory import FollowedRun, Run
followed = FollowedRun(sys.argv[1])
print(len(followed.poll().sessions), flush=True)
with Run(sys.argv[1]) as run:  # and closes it again
    print(len(list(run.summaries())), flush=True)
sys.stdin.readline()
print(len(followed.poll().sessions), flush=True)
with Run(sys.argv[1]) as run:
    print(len(list(run.summaries())), flush=True)
"""


def test_readers_elsewhere_outlive_the_writer(tmp_path: Path) -> None:
    """A process that has a run open, and opened it once more, reads on after the writer closed."""
    path = tmp_path / "run"
    with Store(path) as store:
        for k in range(20):
            store.begin_session(record(f"s{k}")).wait()
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdout is not None
        assert [int(reader.stdout.readline()) for _ in range(2)] == [20, 20]
        store.begin_session(record("last")).wait()
    with Store(path) as store:
        store.begin_session(record("next")).wait()
    said, _ = reader.communicate("go on\n", timeout=120)
    assert said.split() == ["2", "22"]
