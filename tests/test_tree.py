"""The session tree: topology, deltas, and the golden sessions unchanged."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.conftest import load_golden
from trajgym.trajectory import InvalidInput, InvalidSession, SessionTree, Status


def test_golden_survives_json(golden: tuple[SessionTree, dict[str, Any]]) -> None:
    """A session read back from its JSON is the same session."""
    tree, _ = golden
    assert SessionTree.from_json(tree.to_json()).to_json() == tree.to_json()


def test_golden_conversations(golden: tuple[SessionTree, dict[str, Any]]) -> None:
    """Deltas add up to the conversation that each turn belonged to."""
    tree, expect = golden
    for index, roles in expect["conversation"].items():
        assert [m["role"] for m in tree.conversation(tree.turns[int(index)])] == roles


def test_context_is_what_the_policy_saw() -> None:
    """A turn's context ends before its own answer and follows rewrites and returns."""
    tree, _ = load_golden("rewrite")
    assert "reasoning_content" not in str(tree.context(tree.turns[1]))
    tree, _ = load_golden("subagent")
    assert [m["role"] for m in tree.context(tree.turns[3])] == ["user", "assistant", "tool"]


def test_fork_has_two_attempts_with_their_own_outcomes() -> None:
    """Rival attempts share their prefix and keep outcomes apart."""
    tree, _ = load_golden("fork")
    assert [[t.index for t in tree.trajectory(a)] for a in tree.attempts] == [[0, 1], [0, 2]]
    assert [a.outcome and a.outcome.score for a in tree.attempts] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parent": 5}, "does not come before"),
        ({"index": 3}, "has index 3"),
        ({"edge": "spawn"}, "only spawn and return change the agent"),
        ({"edge": "return", "agent": "ghost"}, "no ancestor belongs"),
        ({"attempt": 4}, "attempt 4 is not recorded"),
        ({"edge": "rewrite", "parent": None}, "needs a parent"),
        ({"edge": "sideways"}, "edge"),
        ({"colour": 1}, "colour"),
    ],
)
def test_malformed_turn_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    """A turn that fits nowhere is refused with the field at fault."""
    tree, _ = load_golden("truncated")
    data = copy.deepcopy(tree.to_json())
    data["turns"][2].update(change)
    with pytest.raises(InvalidInput, match=message):
        SessionTree.from_json(data)


def test_failure_can_not_carry_an_outcome() -> None:
    """A failure written as a score is refused."""
    tree, _ = load_golden("failed")
    data = tree.to_json()
    data["attempts"][0]["outcome"] = {"score": 0.0, "passed": False}
    with pytest.raises(InvalidInput, match="a failure is not a score"):
        SessionTree.from_json(data)


def test_delta_that_keeps_too_much_is_refused() -> None:
    """A prompt can't keep more ids than its base has."""
    tree, _ = load_golden("truncated")
    tokens = tree.turns[1].tokens
    assert tokens is not None
    tokens.prompt_kept = 99
    with pytest.raises(InvalidSession, match="keeps 99 ids"):
        tree.sequence(tree.turns[1])


def test_a_status_formats_like_text() -> None:
    """Widths and alignments of format strings apply to a status, as they do to its text."""
    status = Status.parse("failed:env")
    assert f"{status:12}|{status:>12}|{status}" == "failed:env  |  failed:env|failed:env"


@pytest.mark.parametrize("text", ["done", "truncated", "failed:", "completed:x", ""])
def test_unknown_status_is_refused(text: str) -> None:
    """Only the documented endings exist."""
    with pytest.raises(InvalidInput, match="status"):
        Status.parse(text)
