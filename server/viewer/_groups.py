"""A group as JSON: its attempts turn by turn, so that the page can show where they part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajgym.server.viewer._session import turn_digest
from trajgym.trajectory import text_of, tool_calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.trajectory import Attempt, Group, SessionTree, Turn

__all__ = ["describe_group"]

_BRIEF = 160


def describe_group(group: Group, trees: Sequence[SessionTree]) -> dict[str, Any]:
    """Return a group, its members, and the turns of all their attempts in brief.

    Turns with the same digest did the same and saw the same; attempts part at the first turn whose
    digests differ.
    """
    known = {tree.record.id: tree for tree in trees}
    return {
        "id": group.id,
        "task": group.task,
        "planned": group.planned,
        "sealed": group.sealed,
        "members": [
            {"session": m.session, "sample": m.sample, "left": m.left, "known": m.session in known}
            for m in group.members
        ],
        "attempts": [_attempt(tree, a) for tree in trees for a in tree.attempts],
    }


def _attempt(tree: SessionTree, attempt: Attempt) -> dict[str, Any]:
    outcome = attempt.outcome
    return {
        "session": tree.record.id,
        "sample": tree.record.sample,
        "attempt": attempt.index,
        "status": str(attempt.status),
        "cause": attempt.cause.partition("\n")[0][:_BRIEF],
        "score": None if outcome is None else outcome.score,
        "passed": outcome is not None and outcome.passed,
        "turns": [_brief(turn) for turn in tree.trajectory(attempt)],
    }


def _brief(turn: Turn) -> dict[str, Any]:
    calls = tool_calls_of(turn.message)
    did = " ".join(f"{c['function']['name']} {c['function']['arguments']}" for c in calls)
    return {
        "index": turn.index,
        "digest": turn_digest(turn),
        "did": " ".join((did or text_of(turn.message)).split())[:_BRIEF],
        "tools": [call["function"]["name"] for call in calls],
        "failed": sum(1 for call in turn.calls if call.status not in {"ok", "not_executed"}),
        "reward": turn.reward,
    }
