"""Small sessions and groups, written down in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.trajectory import (
    Attempt,
    Group,
    Member,
    Outcome,
    SessionRecord,
    SessionTree,
    Status,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def session(
    name: str,
    score: float | None,
    *,
    turns: int = 1,
    group: str | None = "g",
    status: str = "completed",
    forks: Sequence[float] = (),
) -> SessionTree:
    """A chain of text turns; each of ``forks`` adds a rival attempt of one turn after the first."""
    path = [_turn(i, i - 1 if i else None) for i in range(turns)]
    attempts = [_attempt(0, turns - 1 if turns else None, status, score)]
    for number, rival in enumerate(forks, 1):
        turn = _turn(len(path), 0)
        turn.edge, turn.attempt = "alternative", number
        path.append(turn)
        attempts.append(_attempt(number, turn.index, "completed", rival))
    record = SessionRecord(id=name, task="t", env={"id": "e", "config": {}}, group=group)
    return SessionTree(record, path, attempts)


def group(*sessions: SessionTree, name: str = "g", sealed: bool = True, left: str = "") -> Group:
    """A group of those sessions; the one named ``left`` has left it as stale."""
    members = [
        Member(s.record.id, i, "stale" if s.record.id == left else "")
        for i, s in enumerate(sessions)
    ]
    return Group(id=name, task="t", planned=len(members), members=members, sealed=sealed)


def _turn(index: int, parent: int | None) -> Turn:
    return Turn(index=index, parent=parent, message={"role": "assistant", "content": "x"})


def _attempt(index: int, leaf: int | None, status: str, score: float | None) -> Attempt:
    parsed = Status.parse(status)
    scored = parsed.scored and score is not None
    outcome = Outcome(score=score or 0.0, passed=score == 1.0) if scored else None
    return Attempt(index=index, leaf=leaf, status=parsed, outcome=outcome)
