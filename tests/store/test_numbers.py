"""Numbers that JSON can't represent are refused by the store, not replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trajgym.trajectory import (
    Attempt,
    CallResult,
    InvalidInput,
    Outcome,
    Run,
    SessionRecord,
    Status,
    Store,
    Task,
    Turn,
)

Write = Callable[[Store, float], Any]


def _turn(**fields: Any) -> Turn:
    return Turn(index=0, parent=None, message={"role": "assistant", "content": "x"}, **fields)


def _called(reward: float) -> CallResult:
    return CallResult(call_id="c", name="go", status="ok", reward=reward)


def _ended(score: float, details: dict[str, Any]) -> Attempt:
    outcome = Outcome(score=score, passed=True, details=details)
    return Attempt(leaf=0, status=Status("completed"), outcome=outcome)


def _outcomes(store: Store, number: float) -> Any:
    return store.put_outcomes("s", "later", {0: Outcome(score=number, passed=True)})


WRITES: dict[str, Write] = {
    "reward is": lambda store, n: store.append_turn("s", _turn(reward=n)),
    "reward of call 'go' is": lambda store, n: store.append_turn("s", _turn(calls=[_called(n)])),
    "signals['a'][0]['b'] is": lambda store, n: store.append_turn(
        "s", _turn(signals={"a": [{"b": n}]})
    ),
    "signals['j'] is": lambda store, n: store.add_signals("s", 0, {"j": n}, source="judge"),
    "score is": lambda store, n: store.put_attempt("s", _ended(n, {})),
    "details['d'] is": lambda store, n: store.put_attempt("s", _ended(1.0, {"d": n})),
    "attempt 0: score is": _outcomes,
}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", WRITES)
def test_numbers_that_are_not_finite_are_refused(place: str, number: float, tmp_path: Path) -> None:
    """Wherever one enters, its place is named, nothing is written, and the store reads back."""
    with Store(tmp_path) as store:
        store.put_task(Task(id="t"))
        store.begin_session(SessionRecord(id="s", task="t", env={"id": "x"}))
        if place == "signals['j'] is":
            store.append_turn("s", _turn())
        with pytest.raises(InvalidInput, match="finite") as caught:
            WRITES[place](store, number)
        assert place in str(caught.value)
        if "call" in place or place.startswith("reward"):
            store.append_turn("s", _turn(reward=0.5)).wait()  # the index is still free
    with Run(tmp_path) as run:
        assert run.check() == []
        assert run.session("s").attempts[0].outcome is None


def test_signals_that_are_not_json_are_refused(tmp_path: Path) -> None:
    """The error is this package's own, and names the turn."""
    with Store(tmp_path) as store:
        store.begin_session(SessionRecord(id="s", task="t", env={"id": "x"}))
        store.append_turn("s", _turn())
        with pytest.raises(InvalidInput, match="turn 0: signals: not representable as JSON"):
            store.add_signals("s", 0, {"a": object()}, source="judge")
