"""The conformance check of derivers: trajgym's own and those of plug-ins."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from trajgym.rewards._errors import DeriverFault
from trajgym.rewards._table import TurnTable
from trajgym.rewards._values import Advantages, Rewards
from trajgym.trajectory import (
    Attempt,
    CallResult,
    Group,
    Member,
    Outcome,
    Segment,
    SessionRecord,
    SessionTree,
    Span,
    Status,
    TrajgymError,
    Turn,
    TurnTokens,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rewards._deriver import Deriver

__all__ = ["check_deriver", "probe_deriver"]

_SCORES = (0.0, 0.2, 0.2, 1.0)
_SILENT = {"gold_logprob_before": -2.0, "gold_logprob": -2.0, "value": 0.0}
"""Signals of a turn that changed nothing."""


def check_deriver(deriver: Deriver, *, seeds: Sequence[int] = range(5)) -> None:
    """Run a deriver on generated groups, and check that it keeps the contract.

    The groups contain forks, sub-agents, successful and failed tool calls, and truncated and failed
    attempts.

    Args:
        deriver: the deriver to check, with its settings.
        seeds: one set of groups is generated for each.

    Raises:
        DeriverFault: its values differ between calls or depend on the order of sessions; sessions
            outside its scope, failed sessions or turns of a simulated user change them; such turns
            get one; it is group-relative and gives attempts that earned the same (equal scores, no
            step rewards, no tool calls) a value other than 0; it changes its input; or it returns
            something that is neither `Rewards` nor `Advantages` of the table.
    """
    for seed in seeds:
        sessions = [s for number in range(3) for s in _group(number, seed)]
        expected = _values(deriver, sessions)
        for again in (sessions, sessions[::-1]):
            _compare(deriver, expected, _values(deriver, again), "another order of sessions")
        _check_scope(deriver, sessions, expected)
        failed = [_failed(f"g{number}", 90 + number, seed) for number in range(3)]
        _compare(deriver, expected, _values(deriver, sessions + failed), "failed sessions")
        watched = _values(deriver, [_with_user(tree) for tree in sessions])
        _compare(deriver, expected, watched, "turns of a simulated user")
        for (session, turn), value in watched.items():
            if (session, turn) not in expected and value != 0.0:
                raise DeriverFault(
                    f"{deriver.name}: turn {turn} of session {session} is a simulated user's and "
                    f"has {value} instead of 0",
                )
        if deriver.group_relative:
            for score in (0.0, 0.1, 0.2, 0.3, 0.7, 1.0):
                _check_equal(deriver, sessions, score)


def probe_deriver(deriver: Deriver) -> Rewards | Advantages:
    """Return a deriver's values for one small generated group.

    This reveals invalid settings, and whether the deriver returns rewards or advantages, before a
    rollout is started. The group's turns have tool calls, spans, step rewards and all signals that
    trajgym's derivers read.

    Raises:
        InvalidInput: the deriver refuses its settings.
        DeriverFault: it raises another exception, or returns something else.
    """
    sessions = _group(0, 0)
    try:
        values = deriver.derive(deriver.table(_groups(sessions), sessions))
    except TrajgymError:
        raise
    except Exception as error:  # boundary: deriver code
        raise DeriverFault(
            f"{deriver.name}: derive failed on a generated group: {error!r}"
        ) from error
    if not isinstance(values, Rewards | Advantages):
        raise DeriverFault(
            f"{deriver.name}: derive returned {type(values).__name__}, not Rewards or Advantages",
        )
    return values


def _values(deriver: Deriver, sessions: list[SessionTree]) -> dict[tuple[str, int], float]:
    """Check what the deriver returns, and return the value of each turn."""
    table = deriver.table(_groups(sessions), sessions)
    before = copy.deepcopy(table)
    derived = deriver.derive(table)
    name = deriver.name
    if not isinstance(derived, Rewards | Advantages):
        raise DeriverFault(
            f"{name}: derive returned {type(derived).__name__}, not Rewards or Advantages",
        )
    if derived.table is not table:
        raise DeriverFault(f"{name}: derive returned values of another table")
    for column in TurnTable.__slots__:
        left, right = getattr(before, column), getattr(table, column)
        same = np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right
        if not same:
            raise DeriverFault(f"{name}: derive changed column {column} of its input")
    if derived.spans is None:
        per_turn = derived.values
    else:
        # Add the spans' values, weighted by length, so that they take part in the comparison.
        lengths = (table.span_end - table.span_start) * derived.spans
        per_turn = derived.values + np.bincount(table.span_turn, lengths, len(table))
    turns = zip(table.session.tolist(), table.turn.tolist(), per_turn.tolist(), strict=True)
    return {(table.sessions[s], t): value for s, t, value in turns}


def _compare(
    deriver: Deriver,
    expected: dict[tuple[str, int], float],
    found: dict[tuple[str, int], float],
    cause: str,
) -> None:
    for (session, turn), value in expected.items():
        other = found[session, turn]
        if not np.isclose(value, other, rtol=1e-9, atol=1e-12):
            raise DeriverFault(
                f"{deriver.name}: turn {turn} of session {session} has {value}, but {other} with "
                f"{cause}",
            )


def _check_scope(
    deriver: Deriver, sessions: list[SessionTree], expected: dict[tuple[str, int], float]
) -> None:
    """Check that values are the same if only the declared scope is given."""
    if deriver.scope == "run":
        return
    parts: dict[str | None, list[SessionTree]] = {}
    for tree in sessions:
        record = tree.record
        parts.setdefault(record.id if deriver.scope == "session" else record.group, []).append(tree)
    for part in parts.values():
        alone = _values(deriver, part)
        own = {place: value for place, value in expected.items() if place in alone}
        _compare(deriver, own, alone, f"its {deriver.scope} alone, although that is its scope")


def _check_equal(deriver: Deriver, sessions: list[SessionTree], score: float) -> None:
    for tree in sessions:
        for attempt in tree.attempts:
            if attempt.outcome is not None:
                attempt.outcome = Outcome(score=score, passed=False)
        for silent in tree.turns:
            silent.reward, silent.calls, silent.signals = None, [], _SILENT
    for (session, turn), value in _values(deriver, sessions).items():
        if value != 0.0:
            raise DeriverFault(
                f"{deriver.name}: all scores are {score}, but turn {turn} of session {session} "
                f"has {value} instead of exactly 0",
            )


def _groups(sessions: Sequence[SessionTree]) -> list[Group]:
    groups: dict[str, Group] = {}
    for tree in sessions:
        assert tree.record.group is not None
        group = groups.setdefault(
            tree.record.group, Group(id=tree.record.group, task="t", planned=4, sealed=True)
        )
        group.members.append(Member(tree.record.id, len(group.members)))
    return list(groups.values())


def _group(number: int, seed: int) -> list[SessionTree]:
    """Return four sessions of a group: plain, forked, with a sub-agent, and truncated."""
    rng = np.random.default_rng([seed, number])
    scores = rng.permutation(_SCORES)
    trees = []
    for sample, score in enumerate(scores.tolist()):
        turns = [_turn(i, rng) for i in range(int(rng.integers(2, 6)))]
        status = Status("truncated", "turns") if sample == 3 else Status("completed")
        attempts = [_attempt(0, len(turns) - 1, status, score)]
        if sample == 1:
            fork = _turn(len(turns), rng)
            fork.parent, fork.edge, fork.attempt = 0, "alternative", 1
            turns.append(fork)
            attempts.append(_attempt(1, fork.index, Status("completed"), score / 2))
        if sample == 2:
            helper = _turn(len(turns), rng)
            helper.parent, helper.edge, helper.agent = 0, "spawn", "helper"
            turns.append(helper)
        trees.append(SessionTree(_record(f"g{number}", sample), turns, attempts))
    return trees


def _with_user(tree: SessionTree) -> SessionTree:
    """Return a session with a turn of a simulated user."""
    message = {"role": "assistant", "content": "and so on"}
    user = Turn(index=len(tree.turns), parent=None, message=message, agent="user", role="user")
    return SessionTree(tree.record, [*tree.turns, user], tree.attempts)


def _failed(group: str, sample: int, seed: int) -> SessionTree:
    rng = np.random.default_rng([seed, sample])
    turns = [_turn(i, rng) for i in range(3)]
    attempt = Attempt(index=0, leaf=2, status=Status("failed", "env"), cause="made up")
    return SessionTree(_record(group, sample), turns, [attempt])


def _record(group: str, sample: int) -> SessionRecord:
    name = f"{group}-s{sample}"
    return SessionRecord(id=name, task="t", env={"id": "e", "config": {}}, group=group)


def _attempt(index: int, leaf: int, status: Status, score: float) -> Attempt:
    outcome = Outcome(score=score, passed=score == 1.0)
    return Attempt(index=index, leaf=leaf, status=status, outcome=outcome)


def _turn(index: int, rng: np.random.Generator) -> Turn:
    ok = bool(rng.integers(2))
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        message={"role": "assistant", "content": f"say {index}"},
        observation=[{"role": "user", "content": f"state {int(rng.integers(3))}"}],
        calls=[CallResult(call_id=f"c{index}", name="f", status="ok" if ok else "error")],
        tokens=TurnTokens(
            prompt_kept=0,
            prompt_ids=np.array([1], dtype=np.int32),
            response_ids=np.array([1, 2, 3, 4], dtype=np.int32),
            logprobs=-rng.random(4, dtype=np.float32),
            segments=(Segment(4, 0, 0),),
            spans=(Span("tool_call", 1, 3, f"c{index}"),),
        ),
        reward=float(rng.integers(3)) / 4,
        signals={
            "gold_logprob_before": -1.5,
            "gold_logprob": -float(rng.integers(1, 8)) / 4,
            "value": float(rng.integers(4)) / 4,
            "expert_action": f"say {int(rng.integers(4))}",
            "vote": int(rng.integers(-1, 2)),
            "hint_gaps": rng.normal(size=4).tolist(),
            "certificate_score": float(rng.integers(2)),
            "certificate_valid": float(rng.integers(2)),
            "certificate_false_accept": 0.25,
            "certificate_false_reject": 0.125,
            "tests_failed": int(rng.integers(4)),
        },
    )
