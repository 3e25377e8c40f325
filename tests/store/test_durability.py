"""What the store acknowledged is there, whatever is killed, full, locked or cancelled."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.store.records import record, turn, write_golden
from trajgym.adapters.exports.dataset import read_dataset, write_dataset
from trajgym.envs import Env, EnvSpec, Image, Reply, Session, SessionEnded, ToolResult
from trajgym.rollout.monitoring import LiveView
from trajgym.trajectory import (
    Attempt,
    Group,
    InvalidInput,
    Member,
    Message,
    Run,
    SessionTree,
    Status,
    Store,
    StoreError,
    StoreLocked,
    Task,
    build_rows,
    check_store,
)
from trajgym.trajectory.catalog import Catalog
from trajgym.trajectory.datasets import merge_runs


def test_store_keeps_its_promises() -> None:
    """The shipped conformance check passes on the store that ships."""
    assert len(check_store()) == 6


def test_golden_sessions_are_carried_whole(
    tmp_path: Path, golden: tuple[SessionTree, dict[str, Any]]
) -> None:
    """Every hand-made session reads back equal, down to each token."""
    tree, _ = golden
    with Store(tmp_path) as store:
        write_golden(store, tree)
    with Run(tmp_path) as run:
        assert run.session(tree.record.id).to_json() == tree.to_json()


WRITER = """
import sys
from trajgym.trajectory import SessionRecord, Store, Turn
store = Store(sys.argv[1])
store._sink._connection.execute("PRAGMA wal_autocheckpoint = 20")  # to be hit in the middle of one
n = 0
while True:
    session = f"{sys.argv[2]}-{n}"
    store.begin_session(SessionRecord(id=session, task="t", env={"id": "e", "config": {}}))
    for i in range(20):
        message = {"role": "assistant", "content": "x" * 2000}
        turn = Turn(index=i, parent=i - 1 if i else None, message=message)
        store.append_turn(session, turn).wait()
        print(session, i, flush=True)
    n += 1
"""


def test_acknowledged_turns_survive_sigkill(tmp_path: Path) -> None:
    """Whatever the writer announced before SIGKILL is there afterwards, 20 times in a row."""
    chance = random.Random(20)
    acknowledged: dict[str, int] = {}
    for life in range(20):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), f"life{life}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(chance.randint(1, 300)):
            session, index = writer.stdout.readline().split()
            acknowledged[session] = int(index) + 1
        writer.send_signal(signal.SIGKILL)
        for line in writer.stdout.read().splitlines():
            if len(parts := line.split()) == 2:
                acknowledged[parts[0]] = int(parts[1]) + 1
        writer.wait()
        writer.stdout.close()
    with Run(tmp_path) as run:
        assert run.check() == []
        for session, count in acknowledged.items():
            assert len(run.session(session).turns) >= count
        unfinished = [s for s in run.sessions() if str(s.attempts[0].status) != "interrupted"]
    assert unfinished == []


def test_writers_in_two_processes(tmp_path: Path) -> None:
    """A second writer is refused with an error that names the remedy; the first one continues."""
    with Store(tmp_path) as store:
        code = "import sys; from trajgym.trajectory import Store; Store(sys.argv[1])"
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
        )
        assert "StoreLocked" in other.stderr
        assert "another process writes this store" in other.stderr
        store.begin_session(record()).wait()
    with pytest.raises(StoreError, match="closed"):
        store.begin_session(record("late"))
    Store(tmp_path).close()


def test_bad_write_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    """One write that SQLite refuses fails alone; those grouped with it are kept."""
    with Store(tmp_path) as store:
        store.begin_session(record())
        good = store.append_turn("s", turn(0))
        bad = store._write("turn", None, None, None)
        also = store.append_turn("s", turn(1))
        good.wait()
        also.wait()
        with pytest.raises(StoreError, match="not written"):
            bad.wait()
    with Run(tmp_path) as run:
        assert len(run.session("s").turns) == 2


def test_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """When the file can't grow, the write is refused and earlier turns stay readable."""
    with Store(tmp_path) as store:
        store.begin_session(record())
        store.append_turn("s", turn(0)).wait()
        pages = store._sink._connection.execute("PRAGMA page_count").fetchone()[0]
        store._sink._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreError, match="full"):
            store.append_turn("s", turn(1, "z" * 1_000_000)).wait()
        with Run(tmp_path) as run:
            assert len(run.session("s").turns) == 1


def fill(store: Store) -> None:
    """Leave room for a few small records only."""
    pages = store._sink._connection.execute("PRAGMA page_count").fetchone()[0]
    store._sink._connection.execute(f"PRAGMA max_page_count = {pages + 20}")


def test_a_turn_is_not_acknowledged_without_what_it_refers_to(tmp_path: Path) -> None:
    """An image for which the disk has no room fails the small turn that shows it, not the next."""
    with Store(tmp_path) as store:
        store.begin_session(record()).wait()
        fill(store)
        name, image = store.put_blob(bytes(1_000_000), "image/png")
        shown = store.append_turn("s", turn(0)).after(image)
        with pytest.raises(StoreError, match="full"):
            shown.wait()
        assert "full" in str(shown.error)
        with pytest.raises(StoreError, match="full"):
            store.append_turn("s", turn(1)).after(shown).wait()
        store.append_turn("s", turn(2)).wait()
    with Run(tmp_path) as run:
        assert name not in run.blobs()


def test_a_failed_write_that_nothing_waited_for_is_raised_by_close(tmp_path: Path) -> None:
    """What a caller did not ask for is reported at the end, and what it was given is not again."""
    store = Store(tmp_path)
    store.begin_session(record()).wait()
    fill(store)
    dropped = store.append_turn("s", turn(0, "z" * 1_000_000))
    with pytest.raises(StoreError, match="full"):
        store.append_turn("s", turn(1, "z" * 1_000_000)).wait()
    with pytest.raises(StoreError, match=r"1 writes .* have failed, the first with: .*full"):
        store.close()
    assert dropped.done
    store.close()


def test_an_error_of_close_does_not_replace_the_callers(tmp_path: Path) -> None:
    """An exception inside `with` is raised, with a note of what could not be written."""

    def failing() -> None:
        with Store(tmp_path) as store:
            store.begin_session(record()).wait()
            fill(store)
            store.append_turn("s", turn(0, "z" * 1_000_000))
            raise KeyError("ours")

    with pytest.raises(KeyError) as caught:
        failing()
    assert "full" in caught.value.__notes__[0]


async def test_a_cancelled_wait_is_no_lost_failure(tmp_path: Path) -> None:
    """A caller that is cancelled does not rely on the write, nor on what it refers to."""

    async def begin(store: Store) -> None:
        large = record()
        large.labels = {"text": "z" * 1_000_000}
        image = store.put_blob(bytes(1_000_000), "image/png")[1]
        await store.begin_session(large).after(image)

    async with Store(tmp_path) as store:
        await store.begin_session(record("other"))
        fill(store)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # the store's writer waits
            waiter = asyncio.create_task(begin(store))
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
    with Run(tmp_path) as run:
        assert [summary.record.id for summary in run.summaries()] == ["other"]


def test_a_session_that_was_not_stored_can_be_begun_again(tmp_path: Path) -> None:
    """Its id is free, nothing is added to it until then, and no later session gets its rows."""
    large = record()
    large.labels = {"text": "z" * 1_000_000}
    with Store(tmp_path) as store:
        store.begin_session(record("other")).wait()
        fill(store)
        with pytest.raises(StoreError, match="full"):
            store.begin_session(large).wait()
        with pytest.raises(InvalidInput, match="no session 's'"):
            store.append_turn("s", turn(0))
    with Store(tmp_path) as store:
        store.begin_session(record("third")).wait()
        store.begin_session(large).wait()
        store.append_turn("s", turn(0)).wait()
        store.append_turn("third", turn(0, "own")).wait()
    with Run(tmp_path) as run:
        assert [len(run.session(name).turns) for name in ("s", "third", "other")] == [1, 1, 0]
        assert not run.check()


def test_a_whole_session_is_stored_or_refused(tmp_path: Path) -> None:
    """A turn that does not fit fails the session's write, although what follows it fits."""
    ended = Attempt(leaf=2, status=Status("completed"))
    tree = SessionTree(record(), [turn(0), turn(1, "z" * 1_000_000), turn(2)], [ended])
    with Store(tmp_path) as store:
        store.begin_session(record("other")).wait()
        fill(store)
        with pytest.raises(StoreError, match="full"):
            store.put_session(tree).wait()
    with Store(tmp_path / "whole") as store:
        store.put_session(tree).wait()
    with Run(tmp_path / "whole") as run:
        assert run.session("s").to_json() == tree.to_json()


def lost_in_the_middle(path: Path) -> None:
    """Write a session whose turns 1 and 4 had no room, while others were stored."""
    with Store(path) as store:
        store.put_group(Group(id="g", task="t", planned=1, members=[Member("s", 0)], sealed=True))
        store.begin_session(record()).wait()
        fill(store)
        large = turn(1, "z" * 1_000_000)
        first = store.append_turn("s", turn(0))
        lost = store.append_turn("s", large)
        store.amend_turn("s", 1, delivery="orphan", role="main")
        after = turn(2)
        after.parent = 0
        store.append_turn("s", after).after(first).wait()
        with pytest.raises(StoreError, match="full"):
            lost.wait()
        store.append_turn("s", turn(3)).wait()
        large.index, large.parent = 4, 3
        with pytest.raises(StoreError, match="full"):
            store.append_turn("s", large).wait()
        ended = Attempt(leaf=4, status=Status("failed", "policy"))
        store.put_attempt("s", ended).wait()


def test_turns_after_one_that_was_not_stored_are_read(tmp_path: Path) -> None:
    """What was acknowledged is there; what was not is named, and is no part of any path."""
    lost_in_the_middle(tmp_path)
    with Run(tmp_path) as run:
        tree = run.session("s")
        assert [one.delivery for one in tree.turns] == ["delivered", "orphan", *["delivered"] * 2]
        assert [one.agent for one in tree.turns] == ["main", "lost", "main", "main"]
        assert tree.turns[1].empty
        assert tree.attempts[0].leaf == 3
        assert [one.index for one in tree.trajectory(tree.attempts[0])] == [0, 2, 3]
        (problem,) = run.check()
        assert "session s: turn 1 was not written" in problem
        assert run.turn_count("s") == 4
    with Store(tmp_path) as store:
        store.append_turn("s", turn(4)).wait()
    with Run(tmp_path) as run:
        assert len(run.session("s").turns) == 5


def test_attempts_after_one_that_was_not_stored_are_read(tmp_path: Path) -> None:
    """A rival attempt that had no room is a failed one; the store can be opened again."""
    with Store(tmp_path) as store:
        store.begin_session(record()).wait()
        fill(store)
        large = Attempt(index=1, status=Status("failed", "fork"), error="z" * 1_000_000)
        with pytest.raises(StoreError, match="full"):
            store.put_attempt("s", large).wait()
        store.put_attempt("s", Attempt(index=2)).wait()
    with Store(tmp_path) as store, store.read() as run:
        statuses = [str(attempt.status) for attempt in run.session("s").attempts]
    assert statuses == ["interrupted", "failed:store", "interrupted"]


def test_lost_turns_are_read_by_whatever_reads_runs(tmp_path: Path) -> None:
    """Catalogues, live views, copies, data sets and rows take a run in which a turn is missing."""
    lost_in_the_middle(tmp_path / "run")
    with Catalog(tmp_path / "run", path=tmp_path / "catalog.sqlite") as catalog:
        while not catalog.refresh():
            pass
        assert catalog.totals()["sessions"] == 1
    with LiveView(tmp_path / "run") as view:
        assert view.update().sessions == 1
    merge_runs([tmp_path / "run"], tmp_path / "copy")
    write_dataset(tmp_path / "copy", tmp_path / "data")
    read_dataset(tmp_path / "data", tmp_path / "again")
    for name in ("run", "copy", "again"):
        with Run(tmp_path / name) as run:
            tree = run.session("s")
            assert [one.index for one in tree.trajectory(tree.attempts[0])] == [0, 2, 3]
            assert [drop.reason for drop in build_rows(tree).dropped] == [
                "not scored (failed:policy)"
            ]


class Camera(Env):
    """Shows an image of a megabyte."""

    async def reset(self, task: Task, seed: int | None) -> str:
        del task, seed
        return "look"

    async def respond(self, message: Message) -> ToolResult:
        del message
        return ToolResult(content=["a view", Image(bytes(1_000_000), "image/png")])

    async def verify(self) -> float:
        return 1.0


async def test_a_lost_image_fails_the_step_that_shows_it(tmp_path: Path) -> None:
    """A session does not go on over an image that a full disk did not take."""
    spec = EnvSpec(id=f"{__name__}:Camera")

    async def play(store: Store) -> None:
        async with Session(spec, Task(id="t"), store=store) as session:
            fill(store)
            await session.step(Reply(message={"role": "assistant", "content": "there"}))

    async with Store(tmp_path) as store:
        with pytest.raises(StoreError, match="full"):
            await play(store)


async def test_nothing_follows_a_step_that_was_not_recorded(tmp_path: Path) -> None:
    """The environment has executed what the session does not hold: the attempt ends as failed."""
    spec = EnvSpec(id=f"{__name__}:Camera")
    says = Reply(message={"role": "assistant", "content": "there"})
    async with Store(tmp_path) as store, Session(spec, Task(id="t"), store=store) as session:
        fill(store)
        with pytest.raises(StoreError, match="full"):
            await session.step(says)
        assert str(session.status) == "failed:store"
        with pytest.raises(SessionEnded):
            await session.step(says)
    with Run(tmp_path) as run:
        (tree,) = run.sessions()
    assert str(tree.attempts[0].status) == "failed:store"
    assert "full" in tree.attempts[0].cause


async def test_cancelled_waiter_does_not_lose_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling the task that waits for an acknowledgement leaves the write in place."""
    async with Store(tmp_path) as store:
        await store.begin_session(record())
        go, sink = threading.Event(), type(store._sink)
        commit = sink.commit

        def held(self: Any, writes: Any) -> Any:
            go.wait()
            return commit(self, writes)

        monkeypatch.setattr(sink, "commit", held)  # no acknowledgement before the cancellation

        async def append() -> None:
            await store.append_turn("s", turn(0))

        task = asyncio.create_task(append())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
    with Run(tmp_path) as run:
        assert len(run.session("s").turns) == 1


def test_unrepresentable_values_are_refused_at_the_call(tmp_path: Path) -> None:
    """A value that is not JSON is refused with its place, and the session continues."""
    with Store(tmp_path) as store:
        store.begin_session(record())
        broken = turn(0)
        broken.signals["x"] = object()
        with pytest.raises(InvalidInput, match="JSON"):
            store.append_turn("s", broken)
        store.append_turn("s", turn(0)).wait()


def test_locked_store_is_free_after_sigkill(tmp_path: Path) -> None:
    """The lock is released when its process ends, even if it was killed."""
    code = (
        "import sys,time; from trajgym.trajectory import Store; "
        "s=Store(sys.argv[1]); print('up',flush=True); time.sleep(3600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    with pytest.raises(StoreLocked):
        Store(tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    Store(tmp_path).close()


READ_ONLY = """
import os, sys
from trajgym.trajectory import Run, Store, StoreError, check_store
folder = sys.argv[1]
with Run(folder + "/run") as run:  # imports what another user may not read
    run.session("s")
if os.geteuid() == 0:  # root may write anywhere
    os.seteuid(65534)
for name in ("run", "new"):
    try:
        Store(folder + "/" + name)
    except StoreError as error:
        assert "can't be written" in str(error), error
    else:
        raise AssertionError(name)
with Run(folder + "/run") as run:
    assert run.check() == []
    print(len(run.session("s").turns))
"""


def test_read_only_directories() -> None:
    """A run in a read-only directory is read; writing there is refused with its name."""
    folder = Path(tempfile.mkdtemp())  # the folder of pytest is closed to other users
    try:
        with Store(folder / "run") as store:
            store.begin_session(record())
            store.append_turn("s", turn(0))
        (folder / "run" / "store.sqlite.lock").chmod(0o444)
        for part in ("run", "."):
            (folder / part).chmod(0o555)
        script = [sys.executable, "-c", READ_ONLY, str(folder)]
        done = subprocess.run(script, capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
    finally:
        for part in (".", "run"):
            (folder / part).chmod(0o755)
        shutil.rmtree(folder)
