"""The conformance check of stores: trajgym's own and those of plug-ins."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from trajgym.trajectory._errors import ConformanceError, InvalidInput, StoreLocked
from trajgym.trajectory._records import (
    Attempt,
    Group,
    Member,
    Outcome,
    SessionRecord,
    Status,
    Task,
    Turn,
)
from trajgym.trajectory._run import Run
from trajgym.trajectory._store import Store
from trajgym.trajectory._tokens import Segment, Span, TurnTokens

__all__ = ["check_store"]

_Opener: TypeAlias = Callable[[Path], Store]
_Reader: TypeAlias = Callable[[Path], Run]


def check_store(open_store: _Opener = Store, open_run: _Reader = Run) -> list[str]:
    """Check in a temporary directory that a store keeps what the interface promises.

    Args:
        open_store: opens a run directory for writing.
        open_run: opens it for reading.

    Returns:
        The promises that were checked, in words.

    Raises:
        ConformanceError: a promise is not kept; the message names it.
    """
    checked: list[str] = []
    for promise, check in _PROMISES.items():
        with tempfile.TemporaryDirectory() as directory:
            try:
                check(open_store, open_run, Path(directory))
            except AssertionError as error:
                raise ConformanceError(f"check_store: {promise}: {error}") from error
        checked.append(promise)
    return checked


def _record(name: str = "s1") -> SessionRecord:
    return SessionRecord(id=name, task="t", env={"id": "e", "config": {}}, group="g")


def _turn(index: int) -> Turn:
    tokens = TurnTokens(
        prompt_kept=0,
        prompt_ids=[1, 2],  # type: ignore[arg-type]
        response_ids=[3, 4, 5],  # type: ignore[arg-type]
        logprobs=[-0.1, 0.0, -1e-7],  # type: ignore[arg-type]
        segments=(Segment(1, 0, 2), Segment(1, -1, -1, sampled=False), Segment(1, 2, 2)),
        spans=(Span("reasoning", 0, 2),),
    )
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        message={"role": "assistant", "content": "ü\U0001f600\x00"},
        observation=[{"role": "user", "content": "go on"}],
        signals={"n": index},
        tokens=tokens,
    )


def _acknowledged_is_read_back(open_store: _Opener, open_run: _Reader, path: Path) -> None:
    with open_store(path) as store:
        store.put_task(Task(id="t", data={"x": [1, None, "ä"]}))
        store.put_group(Group(id="g", task="t", planned=1, members=[Member("s1", 0)]))
        store.begin_session(_record())
        for index in range(3):
            store.append_turn("s1", _turn(index)).wait()
        with open_run(path) as run:
            assert len(run.session("s1").turns) == 3, "an acknowledged turn is not readable"
        end = Attempt(leaf=2, status=Status("completed"), outcome=Outcome(score=0.5, passed=False))
        store.put_attempt("s1", end).wait()
    with open_run(path) as run:
        tree = run.session("s1")
        for index, turn in enumerate(tree.turns):
            assert turn.tokens is not None, "the tokens are missing"
            wanted = _turn(index)
            assert wanted.tokens is not None
            assert turn.tokens.to_json() == wanted.tokens.to_json(), "the tokens changed"
            assert turn.message == wanted.message, "the message changed"
        assert tree.attempts == [end], "the attempt changed"
        assert [t.data for t in run.tasks()] == [{"x": [1, None, "ä"]}], "the task changed"
        group = run.group("g")
        assert group is not None, "the group is missing"
        assert group.members == [Member("s1", 0)], "the group changed"


def _blobs_are_kept_once(open_store: _Opener, open_run: _Reader, path: Path) -> None:
    with open_store(path) as store:
        first, ack = store.put_blob(b"\x89png", "image/png")
        second, _ = store.put_blob(b"\x89png", "image/png")
        ack.wait()
        assert first == second, "equal bytes got different hashes"
    with open_run(path) as run:
        assert run.blob(first) == (b"\x89png", "image/png"), "the bytes changed"


def _second_writer_is_refused(open_store: _Opener, open_run: _Reader, path: Path) -> None:
    del open_run
    with open_store(path):
        try:
            open_store(path).close()
        except StoreLocked:
            return
        raise AssertionError("a second writer was accepted")


def _bad_input_writes_nothing(open_store: _Opener, open_run: _Reader, path: Path) -> None:
    with open_store(path) as store:
        store.begin_session(_record()).wait()
        for session, index in (("s1", 1), ("no", 0)):
            try:
                store.append_turn(session, _turn(index))
            except InvalidInput:
                continue
            raise AssertionError("a turn out of order was accepted")
        store.append_turn("s1", _turn(0)).wait()
    with open_run(path) as run:
        assert len(run.session("s1").turns) == 1, "a refused turn was written"


def _unfinished_reads_interrupted(open_store: _Opener, open_run: _Reader, path: Path) -> None:
    store = open_store(path)
    store.begin_session(_record())
    store.append_turn("s1", _turn(0)).wait()
    with open_run(path) as run:
        assert str(run.session("s1").attempts[0].status) == "running", (
            "an attempt in progress is not reported as running"
        )
    store.close()
    with open_run(path) as run:
        attempt = run.session("s1").attempts[0]
        assert (str(attempt.status), attempt.leaf) == ("interrupted", 0), (
            "an unfinished attempt is not reported as interrupted"
        )
    with open_store(path) as again:
        again.append_turn("s1", _turn(1)).wait()


def _signals_reach_their_turn(open_store: _Opener, open_run: _Reader, path: Path) -> None:
    with open_store(path) as store:
        store.begin_session(_record())
        store.append_turn("s1", _turn(0))
        store.add_signals("s1", 0, {"judge": 0.5}, source="judge:a").wait()
        store.put_derived("s1", "outcome", b"{}").wait()
    with open_run(path) as run:
        assert run.session("s1").turns[0].signals == {"n": 0, "judge": 0.5}, (
            "the signals are missing"
        )
        assert run.annotations("s1") == [(0, "judge:a", {"judge": 0.5})], (
            "the annotator's name is missing"
        )
        assert run.derived("s1") == {"outcome": b"{}"}, "the derived values are missing"


_PROMISES = {
    "acknowledged writes are read back unchanged, also while the store is open": (
        _acknowledged_is_read_back
    ),
    "equal bytes are stored once": _blobs_are_kept_once,
    "a second writer is refused": _second_writer_is_refused,
    "bad input is refused and writes nothing": _bad_input_writes_nothing,
    "an unfinished session is running, then interrupted": _unfinished_reads_interrupted,
    "signals and derived values reach their session": _signals_reach_their_turn,
}
