"""The store: durable under SIGKILL, reports damage, readable while written."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import Counter
from trajgym import trajectory
from trajgym.envs import EnvSpec, Session
from trajgym.trajectory import (
    Attempt,
    CallResult,
    CallStatus,
    Edge,
    FollowedRun,
    Group,
    InvalidInput,
    Member,
    Outcome,
    Run,
    Sampling,
    Segment,
    SessionRecord,
    SessionTree,
    Span,
    Status,
    Store,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreSchemaMismatch,
    Task,
    Try,
    Turn,
    TurnTokens,
    Usage,
    Wire,
    check_store,
)
from trajgym.trajectory._codec import (
    decode_turn,
    encode,
    encode_turn,
    replace_surrogates,
    to_jsonable,
)


def record(name: str = "s") -> SessionRecord:
    return SessionRecord(id=name, task="t", env={"id": "e", "config": {}})


def turn(index: int, text: str = "x") -> Turn:
    parent = index - 1 if index else None
    return Turn(index=index, parent=parent, message={"role": "assistant", "content": text})


def write_golden(store: Store, tree: SessionTree) -> None:
    store.begin_session(tree.record)
    for one in tree.turns:
        store.append_turn(tree.record.id, one)
    for attempt in tree.attempts:
        store.put_attempt(tree.record.id, attempt).wait()


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
store._connection.execute("PRAGMA wal_autocheckpoint = 20")  # to be hit in the middle of one
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


def test_bad_write_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    """One write that SQLite refuses fails alone; those grouped with it are kept."""
    with Store(tmp_path) as store:
        store.begin_session(record())
        good = store.append_turn("s", turn(0))
        bad = store._write("INSERT INTO turns VALUES (NULL, NULL, NULL)")
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
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreError, match="full"):
            store.append_turn("s", turn(1, "z" * 1_000_000)).wait()
        with Run(tmp_path) as run:
            assert len(run.session("s").turns) == 1


async def test_cancelled_waiter_does_not_lose_the_write(tmp_path: Path) -> None:
    """Cancelling the task that waits for an acknowledgement leaves the write in place."""
    async with Store(tmp_path) as store:
        await store.begin_session(record())

        async def append() -> None:
            await store.append_turn("s", turn(0))

        task = asyncio.create_task(append())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
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
        "s=Store(sys.argv[1]); print('up',flush=True); time.sleep(60)"
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


def test_copy_of_a_run_is_a_run(tmp_path: Path) -> None:
    """A closed run is one plain file that can be copied."""
    with Store(tmp_path / "a") as store:
        store.begin_session(record())
        store.append_turn("s", turn(0))
        store.put_attempt("s", Attempt(leaf=0))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Run(tmp_path / "b") as run:
        assert len(run.session("s").turns) == 1


ids = st.lists(st.integers(0, 2**31 - 1), max_size=8)
text = st.text(st.characters(codec="utf-8"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


kinds = st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans())


@st.composite
def tokens(draw: st.DrawFn) -> TurnTokens:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    segments = tuple(
        Segment(n, -1, -1, False) if forced else Segment(n, low, low + more)
        for n in lengths
        for low, more, forced in [
            draw(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()))
        ]
    )
    n = sum(lengths)
    logprobs = draw(st.lists(st.floats(-1e4, 0, width=32), min_size=n, max_size=n))
    end = draw(st.integers(1, n))
    return TurnTokens(
        prompt_kept=draw(st.integers(0, 2**31)),
        prompt_ids=draw(ids),  # type: ignore[arg-type]
        response_ids=draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)),  # type: ignore[arg-type]
        logprobs=logprobs,  # type: ignore[arg-type]
        segments=segments,
        spans=draw(st.sampled_from([(), (Span("answer", 0, end, "c"),)])),
    )


@settings(max_examples=200, deadline=None)
@given(st.none() | tokens(), st.dictionaries(text, json_values, max_size=3), text)
def test_any_turn_survives_the_codec(
    given_tokens: TurnTokens | None, signals: dict[str, Any], content: str
) -> None:
    """Turns of any content come back equal from the form that the store keeps."""
    original = turn(0, content)
    original.tokens = given_tokens
    original.signals = signals
    again = decode_turn(*encode_turn(original))
    assert (again.message, again.signals) == (original.message, signals)
    if given_tokens is not None:
        assert again.tokens is not None
        assert again.tokens.to_json() == given_tokens.to_json()


_DRAWN = {
    "index": st.integers(0, 9),
    "parent": st.none() | st.integers(0, 9),
    "edge": st.sampled_from(get_args(Edge)),
    "attempt": st.integers(0, 3),
    "agent": st.sampled_from(["main", "helper"]),
    "kept": st.none() | st.integers(0, 3),
    "context": st.lists(st.just({"role": "user", "content": "go"}), max_size=2),
    "observation": st.lists(st.just({"role": "user", "content": "saw"}), max_size=2),
    "calls": st.lists(
        st.builds(
            CallResult,
            call_id=text,
            name=text,
            status=st.sampled_from(get_args(CallStatus)),
            reward=st.none() | st.floats(-1, 1),
            seconds=st.floats(0, 9),
        ),
        max_size=2,
    ),
    "reward": st.none() | st.floats(-1, 1),
    "done": st.booleans(),
    "signals": st.dictionaries(text, json_values, max_size=2),
    "finish": st.sampled_from(["stop", "length"]),
    "usage": st.none() | st.builds(Usage, prompt_tokens=st.integers(0, 9)),
    "sampling": st.none() | st.builds(Sampling, temperature=st.none() | st.floats(0, 2)),
    "policy": text,
    "synthetic": st.booleans(),
    "snapshot": st.none() | text,
    "started_at": st.floats(0, 2e9),
    "policy_seconds": st.floats(0, 9),
    "env_seconds": st.floats(0, 9),
    "returns": st.lists(st.integers(0, 9), max_size=2),
    "delivery": st.sampled_from(["delivered", "open", "orphan"]),
    "role": st.sampled_from(["main", "side:title"]),
    "role_reason": text,
    "wire": st.none()
    | st.builds(Wire, call=text, dialect=text, tries=st.just([Try(1.0, 2.0, "lost")])),
}


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries(_DRAWN))
def test_turns_are_written_as_the_general_encoder_would(drawn: dict[str, Any]) -> None:
    """The written-out encoder of turns leaves out no field, whichever of them are set."""
    original = Turn(message={"role": "assistant", "content": "so"}, **drawn)
    assert {field.name for field in fields(Turn)} == {*_DRAWN, "message", "tokens"}
    body, _ = encode_turn(original)
    assert json.loads(body) == json.loads(encode(original, exclude={"tokens"}))


@given(st.binary(max_size=60))
def test_damaged_tokens_never_pass(data: bytes) -> None:
    """Bytes that are not packed tokens are refused, not misread."""
    body, packed = encode_turn(turn(0))
    assert packed is None
    with pytest.raises(InvalidInput, match="tokens"):
        decode_turn(body, data)


wild = st.text(st.characters(exclude_categories=()), max_size=12)
"""Any text: lone surrogates, NUL and control characters as well."""


def whole(text: str) -> str:
    """Return text as a store keeps it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def everything(draw: Callable[[], str]) -> tuple[SessionRecord, Turn, Attempt, Group]:
    """Return records whose every text field holds drawn text."""

    def values() -> dict[str, Any]:
        return {draw(): draw(), "deep": [{draw(): [draw()]}, [draw(), 1]]}

    def message(role: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": draw(), **more}

    call = {"id": draw(), "type": "function", "function": {"name": draw(), "arguments": draw()}}
    tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=[1],  # type: ignore[arg-type]
        response_ids=[2],  # type: ignore[arg-type]
        logprobs=[-1.0],  # type: ignore[arg-type]
        segments=(Segment(1, 0, 0),),
        spans=(Span(draw(), 0, 1, draw()),),
    )
    head = SessionRecord(
        id="s" + draw(),
        task=draw(),
        env={"id": draw(), "config": values()},
        group=draw(),
        tools=[values()],
        budgets=values(),
        labels={draw(): draw()},
    )
    one = Turn(
        index=0,
        parent=None,
        message=message("assistant", tool_calls=[call], reasoning_content=draw()),
        context=[message("user"), message("system", name=draw())],
        observation=[message("tool", tool_call_id=draw())],
        calls=[CallResult(call_id=draw(), name=draw(), status="ok")],
        signals=values(),
        finish=draw(),
        policy=draw(),
        tokens=tokens,
        snapshot=draw(),
        agent="main",
    )
    details = Outcome(score=1.0, passed=True, details=values())
    status = Status("truncated", "x" + draw())
    end = Attempt(leaf=0, status=status, cause=draw(), error=draw(), outcome=details)
    name = draw().replace("_", "") or "g"
    group = Group(id=name, task=draw(), planned=1, members=[Member(draw(), 0, draw())])
    return head, one, end, group


def write_and_compare(folder: Path, draw: Callable[[], str]) -> None:
    head, one, end, group = everything(draw)
    task = Task(id="t", data={draw(): [draw()]})
    given = head.id
    with Store(folder) as store:
        store.put_task(task)
        store.put_group(group)
        store.begin_session(head)
        store.append_turn(head.id, one)
        store.add_signals(given, 0, {"note": draw()}, source=draw())
        store.put_derived(given, draw(), b"1")
        store.put_blob(b"data", draw())
        store.set_meta(draw(), draw())
        store.put_attempt(given, end).wait()
    with Run(folder) as run:
        assert run.check() == []
        tree = run.session(given)
        del tree.turns[0].signals["note"]
        (kept,) = run.groups()
        (asked,) = run.tasks()
    assert tree.record == head
    assert tree.record.id == whole(given)
    assert to_jsonable(tree.turns[0]) == to_jsonable(one)
    assert tree.turns[0].tokens is not None
    assert tree.turns[0].tokens.spans == one.tokens.spans  # type: ignore[union-attr]
    assert to_jsonable(tree.attempts[0]) == to_jsonable(end)
    assert tree.attempts[0].status == end.status
    assert kept == group
    assert asked.data == {whole(k): [whole(v[0])] for k, v in task.data.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(wild, min_size=1, max_size=6))
def test_any_text_in_any_field_is_kept(texts: list[str]) -> None:
    """Arbitrary text in every text field of every record is durable; memory and store agree."""
    drawn = cycle(texts)
    with tempfile.TemporaryDirectory() as folder:
        write_and_compare(Path(folder), lambda: next(drawn))


@pytest.mark.parametrize(("text", "step"), [("x" * 10_000_000, 8), ("\udc80", 1), ("\0" * 9, 1)])
def test_text_in_one_field_is_kept(text: str, step: int, tmp_path: Path) -> None:
    """Ten megabytes, a lone surrogate or NULs in one field alone, one field after the other."""
    drawn: list[None] = []

    def one_long(at: int) -> str:
        drawn.append(None)
        return text if len(drawn) == at else "x"

    everything(lambda: one_long(0))
    for at in range(1, len(drawn) + 1, step):
        drawn.clear()
        write_and_compare(tmp_path / str(at), lambda at=at: one_long(at))  # type: ignore[misc]


@given(st.text(st.sampled_from("aé中\U0001f600\0\ufeff\ufffe\ud800\udbff\udc00\udfff")))
def test_surrogates_are_replaced_as_the_codec_does(text: str) -> None:
    """Pairs become their character and lone ones U+FFFD, wherever they stand."""
    assert replace_surrogates(text) == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


async def test_a_failure_with_a_lone_surrogate_ends_durably(tmp_path: Path) -> None:
    """An error text from ``os.fsdecode`` is recorded as the failure that it is, not as a crash."""
    assert Counter
    with Store(tmp_path) as store:
        session = Session(EnvSpec(id="test/counter"), Task(id="t"), store=store, session_id="s")
        async with session:
            await session.fail("env", os.fsdecode(b"caf\xe9"), "trace \udce9")
        assert str(session.status) == "failed:env"
        with store.read() as run:
            (kept,) = run.session("s").attempts
        assert (str(kept.status), kept.cause) == ("failed:env", "caf\ufffd")
        assert session.attempt.cause == kept.cause


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


@pytest.mark.parametrize(
    "name", ["AsyncClosing", "MissingExtra", "digest", "replace_surrogates", "nothing"]
)
def test_internal_names_left_the_surface(name: str) -> None:
    """Names that were never meant for users still import, with a warning; others don't."""
    assert name not in trajectory.__all__
    if name == "nothing":
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            getattr(trajectory, name)
    else:
        with pytest.warns(DeprecationWarning, match=f"trajgym.trajectory.{name} has moved"):
            assert callable(getattr(trajectory, name))


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


def test_a_listing_of_a_damaged_record_names_the_file(tmp_path: Path) -> None:
    """A record that is not JSON is damage, also where only a part of it is read."""
    with Store(tmp_path) as store:
        store.begin_session(SessionRecord(id="s", task="t", env={}))
    with sqlite3.connect(tmp_path / "store.sqlite") as connection:
        connection.execute("UPDATE sessions SET body = CAST('{\"id\":' AS BLOB)")
    connection.close()
    with Run(tmp_path) as run, pytest.raises(StoreCorrupt, match=r"store\.sqlite"):
        list(run.attempt_summaries())
