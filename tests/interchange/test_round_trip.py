"""Exports are imported again: what a format claims to hold is there, the rest is reported."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.conftest import GOLDEN_NAMES, load_golden
from tests.interchange.sessions import PIXEL, assert_kept, linear_sessions, through
from trajgym.adapters.interchange import get_format, list_formats
from trajgym.trajectory import SessionTree

WRITTEN = [name for name in list_formats() if get_format(name).writes]
OTHERS = {"fork", "pictures", "screenshot"}
"""Golden sessions with a test of their own, or with images, which the first test draws."""
IMAGE = hashlib.sha256(PIXEL).hexdigest()


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(tree=linear_sessions(IMAGE))
def test_what_a_format_holds_is_there_again(name: str, tree: SessionTree) -> None:
    """Messages, and every feature that the format claims; every other one is reported as lost."""
    with tempfile.TemporaryDirectory() as folder:
        (after,), report = through(name, [tree], Path(folder))
        assert_kept(name, tree, after, report)


@pytest.mark.parametrize("golden", [one for one in GOLDEN_NAMES if one not in OTHERS])
@pytest.mark.parametrize("name", ["atif", "inspect", "verifiers"])
def test_hand_made_sessions(name: str, golden: str, tmp_path: Path) -> None:
    """Rewrites, sub-agents and failures go through formats that can hold them."""
    tree, _ = load_golden(golden)
    (after,), _ = through(name, [tree], tmp_path)
    if name in {"atif", "verifiers"}:
        assert [turn.agent for turn in after.turns] == [turn.agent for turn in tree.turns]
        assert [turn.edge for turn in after.turns] == [turn.edge for turn in tree.turns]
        for left, right in zip(tree.turns, after.turns, strict=True):
            assert tree.context(left) == after.context(right)
            if left.tokens is not None:
                assert tree.sequence(left).tolist() == after.sequence(right).tolist()
    assert [str(one.status) for one in after.attempts] == [str(one.status) for one in tree.attempts]


@pytest.mark.parametrize("name", ["atif", "verifiers"])
def test_forks_become_sessions(name: str, tmp_path: Path) -> None:
    """Each attempt of a forked session is a trajectory, and the export says so."""
    tree, _ = load_golden("fork")
    back, report = through(name, [tree], tmp_path)
    assert sorted(one.attempts[0].outcome.score for one in back if one.attempts[0].outcome) == [
        0,
        1,
    ]
    assert report.lost["forks"] == 1
