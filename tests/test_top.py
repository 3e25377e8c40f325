"""A run that others write, followed: everything once, live figures, Prometheus."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.build import exact_session
from trajgym.rollout.monitoring import LiveView, exposition
from trajgym.rollout.monitoring._idle import Busy
from trajgym.trajectory import (
    Attempt,
    FollowedRun,
    Group,
    Outcome,
    SessionRecord,
    Status,
    Store,
    StoreCorrupt,
    StoreError,
    Turn,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent


def record(name: str) -> SessionRecord:
    return SessionRecord(id=name, task="t", env={"id": "e", "config": {}})


def turn(index: int, **more: Any) -> Turn:
    message = {"role": "assistant", "content": "x"}
    return Turn(index=index, parent=index - 1 if index else None, message=message, **more)


WRITES = st.lists(st.sampled_from(["begin", "turn", "end", "poll", "file"]), max_size=40)


@settings(max_examples=60)
@given(WRITES)
def test_polls_return_everything_once(writes: list[str]) -> None:
    """Whatever is written between polls, in one file or in later ones, is returned once."""
    with tempfile.TemporaryDirectory() as folder, FollowedRun(folder) as followed:
        stores = [Store(folder)]
        begun: list[tuple[Store, str, int]] = []
        seen: list[str] = []
        written: list[str] = []
        running = 0
        for number, write in enumerate([*writes, "poll"]):
            if write == "file" and len(stores) < 3:
                stores.append(Store(Path(folder) / f"more{len(stores)}.sqlite"))
            elif write == "begin":
                begun.append((stores[-1], f"s{number}", 0))
                stores[-1].begin_session(record(f"s{number}"))
                stores[-1].put_attempt(f"s{number}", Attempt()).wait()
                written.append(f"s{number}")
                running += 1
            elif write == "turn" and begun:
                store, name, count = begun.pop()
                store.append_turn(name, turn(count, policy=name)).wait()
                begun.append((store, name, count + 1))
                written.append(f"{name}/{count}")
            elif write == "end" and begun:
                store, name, count = begun.pop()
                leaf = count - 1 if count else None
                end = Attempt(leaf=leaf, status=Status("cancelled"), cause=name)
                store.put_attempt(name, end).wait()
                written.append(f"{name} ended")
                running -= 1
            elif write == "poll":
                found = followed.poll()
                seen += [each.id for each in found.sessions]
                seen += [f"{each.policy}/{each.index}" for each in found.turns]
                seen += [f"{each.cause} ended" for each in found.ended]
                assert found.running == running
                assert sorted(seen) == sorted(written)
        for store in stores:
            store.close()
        after = followed.poll()
        assert (after.running, after.interrupted) == (0, running)


def test_an_end_is_never_returned_before_its_turn(tmp_path: Path) -> None:
    """While another thread writes, turns seen are never fewer than attempts that ended."""

    def write(store: Store) -> None:
        for number in range(400):
            store.begin_session(record(f"s{number}"))
            store.append_turn(f"s{number}", turn(0))
            end = Attempt(leaf=0, status=Status("cancelled"))
            store.put_attempt(f"s{number}", end).wait()

    sessions = turns = ended = 0
    with Store(tmp_path) as store, FollowedRun(tmp_path) as followed:
        writer = threading.Thread(target=write, args=(store,))
        writer.start()
        while ended < 400:  # the test's own time limit ends it
            found = followed.poll()
            sessions += len(found.sessions)
            turns += len(found.turns)
            ended += len(found.ended)
            assert ended <= turns <= sessions
        writer.join()


def test_more_than_one_poll_reads(tmp_path: Path) -> None:
    """A poll is bounded; the view reads on until it has everything."""
    with Store(tmp_path) as store:
        store.begin_session(record("s"))
        for index in range(4999):
            store.append_turn("s", turn(index))
        store.put_attempt("s", Attempt()).wait()
        with FollowedRun(tmp_path) as followed:
            first = followed.poll()
            assert not first.complete
            assert len(first.turns) < 4999
        with LiveView(tmp_path) as view:
            assert view.update().turns == 4999
            assert view.update().turns == 4999


def test_what_is_no_run_is_an_error(tmp_path: Path) -> None:
    """A missing directory, and a file that is no store; an empty directory is a run to come."""
    with pytest.raises(StoreError, match="no run here"):
        FollowedRun(tmp_path / "nope")
    with FollowedRun(tmp_path) as followed:
        assert followed.poll().running == 0
        (tmp_path / "bad.sqlite").write_bytes(b"not a database, but long enough to be read" * 40)
        with pytest.raises(StoreCorrupt):
            followed.poll()


def fill(store: Store) -> None:
    """Two groups: a session that passed, one that failed, one in progress; stale turns."""
    for name, group in (("a", "g"), ("b", "g"), ("c", "h")):
        store.put_group(Group(id=group, task="t", planned=2, sealed=group == "g"))
        tree = exact_session(name, 1.0 if name == "a" else None, group=group, turns=2)
        store.begin_session(tree.record)
        for one in tree.turns:
            one.started_at, one.policy_seconds, one.env_seconds = 1000.0 + one.index, 0.75, 0.25
            one.usage = Usage(prompt_tokens=10, completion_tokens=6)
            store.append_turn(name, one)
    store.put_attempt(
        "a", Attempt(leaf=1, status=Status("completed"), outcome=Outcome(score=1.0, passed=True))
    )
    failed = Attempt(leaf=1, status=Status("failed", "env"), cause="the disk is full\nmore")
    store.put_attempt("b", failed)
    store.put_attempt("c", Attempt()).wait()


def test_figures_of_a_run(tmp_path: Path) -> None:
    """States, rates over the window, shares of time, staleness; failures by their first line."""
    with Store(tmp_path) as store, LiveView(tmp_path, window=10, now=lambda: 1002.5) as view:
        fill(store)
        found = view.update()
        assert (found.sessions, found.running, found.groups, found.sealed) == (3, 1, 2, 1)
        assert found.statuses == {"completed": 1, "failed:env": 1}
        assert (found.scored, found.passed, found.mean_score) == (1, 1, 1.0)
        assert found.causes == {"the disk is full": 1}
        assert (found.turns, found.exact) == (6, 6)
        assert (found.prompt_tokens, found.completion_tokens) == (60, 36)
        assert found.policy_share == 0.75
        assert found.turns_per_second == pytest.approx(6 / 2.5)  # it began 2.5 s ago
        assert found.tokens_per_second == pytest.approx(36 / 2.5)
        assert sum(found.staleness) == 6
    with LiveView(tmp_path, window=10, now=lambda: 2000.0) as view:
        later = view.update()
        assert (later.running, later.interrupted, later.turns_per_second) == (0, 1, 0.0)


def session(store: Store, name: str, begun: float, calls: Sequence[tuple[float, float]]) -> None:
    """A session that is in progress, with the begin and the seconds of its policy calls."""
    store.begin_session(replace(record(name), created_at=begun))
    store.put_attempt(name, Attempt())
    for index, (at, seconds) in enumerate(calls):
        store.append_turn(name, turn(index, started_at=at, policy_seconds=seconds)).wait()


def test_idle_shares(tmp_path: Path) -> None:
    """Of slots, engine and sandboxes: of the last call only, and in progress up to now."""
    clock = [120.0]
    with Store(tmp_path) as store, LiveView(tmp_path, now=lambda: clock[0]) as view:
        assert view.update().idle == {}
        # An earlier call, of which nothing counts.
        store.set_meta("slots", '{"sessions": 1, "since": 0}')
        session(store, "old", 0.0, [(0.0, 50.0)])
        waits = {"policy": 50.0, "environment": 50.0}
        done = Status("completed")
        store.put_attempt("old", Attempt(leaf=0, status=done, ended_at=99.0, waits=waits)).wait()
        assert view.update().idle["slots"] == 0.0
        store.set_meta("slots", '{"sessions": 2, "since": 100}')
        # 10 s from the start, then 10 s of 20: calls of 5 s and 4 s that overlap in 2 s.
        session(store, "a", 100.0, [(103.0, 5.0)])
        session(store, "b", 110.0, [(106.0, 4.0)])
        waits = {"policy": 5.0, "environment": 2.0, "sandbox": 1.0, "verify": 1.0, "place": 1.0}
        store.put_attempt("a", Attempt(leaf=0, status=done, ended_at=110.0, waits=waits)).wait()
        found = view.update()
        assert found.idle == pytest.approx(
            {
                "slots": 1 - (9 + 10) / (2 * 20),  # a held one for 9 s, b has one for 10 s
                "engine": 1 - 7 / 10,  # until 110, where the last known call ended
                "sandboxes": 6 / 10,
            }
        )
        clock[0] = 130.0  # b is still in progress, and nothing else is known
        assert view.update().idle["slots"] == pytest.approx(1 - (9 + 20) / (2 * 30))
        values = parsed(exposition(view.figures))
        assert values['trajgym_run_idle_share{part="engine"}'] == pytest.approx(0.3)
        end = Attempt(leaf=0, status=done, ended_at=120.0, waits={"policy": 10.0})
        store.put_attempt("b", end).wait()
        clock[0] = 900.0  # the run has ended, and no time passes any more
        assert view.update().idle["slots"] == pytest.approx(1 - (9 + 10) / (2 * 20))
    with LiveView(tmp_path, now=lambda: 2000.0) as later:
        assert later.update().idle == pytest.approx(view.figures.idle)


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=60)


@given(INTERVALS)
def test_busy_time_is_that_of_the_union(intervals: list[tuple[int, int]]) -> None:
    """In whatever order the intervals come."""
    busy = Busy()
    for start, length in intervals:
        busy.add(start, start + length)
    moments = {at for start, length in intervals for at in range(start, start + length)}
    assert busy.seconds == len(moments)
    assert busy.until == max((start + length for start, length in intervals), default=None)


def test_busy_time_is_kept_in_bounded_memory() -> None:
    """Of many intervals the earlier ones are a sum, to which nothing is added."""
    busy = Busy()
    for at in range(20_000):
        busy.add(2.0 * at, 2.0 * at + 1.0)
    busy.add(0.0, 2.0)
    assert busy.seconds == 20_000
    assert len(busy._starts) <= 4096


def parsed(text: str) -> dict[str, float]:
    """Parse Prometheus' text format strictly."""
    values = {}
    described: set[str] = set()
    for line in text.splitlines():
        if found := re.fullmatch(r"# (HELP|TYPE) (trajgym_\w+) .+", line):
            described.add(found[2])
            continue
        label = r'\{\w+="(?:[^"\\\n]|\\.)*"\}'
        found = re.fullmatch(rf"((trajgym_\w+?)(?:_bucket|_sum|_count)?(?:{label})?) (\S+)", line)
        assert found is not None, line
        assert found[2] in described or found[1].partition("{")[0] in described, line
        values[found[1]] = float(found[3])
    return values


def test_prometheus_text(tmp_path: Path) -> None:
    """Every figure has a metric; label values are escaped."""
    with Store(tmp_path) as store:
        fill(store)
        with LiveView(tmp_path) as view:
            figures = view.update()
            figures.statuses['odd"\n'] += 1
            values = parsed(exposition(figures))
    assert values['trajgym_run_attempts_total{status="failed:env"}'] == 1
    assert values['trajgym_run_failures_total{part="env"}'] == 1
    assert values["trajgym_run_turns_total"] == 6
    assert values["trajgym_run_staleness_count"] == 6
    assert values['trajgym_run_staleness_bucket{le="+Inf"}'] == 6


def top(*words: object) -> Sequence[str]:
    return [sys.executable, "-m", "trajgym", "top", *map(str, words)]


def test_the_command_in_a_pipe_and_as_json(tmp_path: Path) -> None:
    """One line per figure, and the same figures as JSON."""
    with Store(tmp_path) as store:
        fill(store)
        shown = subprocess.run(top(tmp_path), cwd=ROOT, capture_output=True, text=True, check=True)
        lines = [line.split("\t") for line in shown.stdout.splitlines()]
        found = dict(line for line in lines if line[0] != "staleness")
        assert found["groups"] == "1 of 2 sealed"
        assert found["outcomes"] == "1 of 1 passed (100.0%), mean score 1.000"
        assert found["failures"] == "1 x the disk is full"
        assert "1 attempts in progress" in found["sessions"]
        done = subprocess.run(
            top(tmp_path, "--json"), cwd=ROOT, capture_output=True, text=True, check=True
        )
        document = json.loads(done.stdout)
    assert (document["turns"], document["running"], document["mean_score"]) == (6, 1, 1.0)
    wrong = subprocess.run(top(tmp_path / "nope"), cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_metrics_are_served_until_ctrl_c(tmp_path: Path) -> None:
    """`--metrics 0` names its URL, serves what is written meanwhile, and ends by SIGINT."""
    with Store(tmp_path) as store:
        process = subprocess.Popen(
            top(tmp_path, "--metrics", 0, "--interval", 0.1),
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)
            assert match is not None, line

            def read() -> dict[str, float]:
                with urllib.request.urlopen(match[0], timeout=60) as answer:
                    return parsed(answer.read().decode())

            assert read()["trajgym_run_sessions_total"] == 0
            fill(store)
            while read()["trajgym_run_turns_total"] < 6:  # the test's own time limit ends it
                pass
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(match[0].replace("metrics", "etc"), timeout=60)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.communicate()
