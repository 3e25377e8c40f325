"""Exports are imported again: what a format claims to hold is there, the rest is reported."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import GOLDEN_NAMES, load_golden
from tests.interchange.sessions import PIXEL, assert_kept, linear_sessions, through
from trajgym.adapters import export
from trajgym.adapters.interchange import get_format, import_run, list_formats
from trajgym.rewards import as_deriver
from trajgym.trajectory import Group, Member, Run, build_rows

WRITTEN = [name for name in list_formats() if get_format(name).writes]
ROWS = {"atropos", "openenv"}
"""Formats that hold exact turns only."""
OTHERS = {"fork", "pictures", "screenshot"}
"""Golden sessions with a test of their own, or with images, which the first test draws."""
IMAGE = hashlib.sha256(PIXEL).hexdigest()


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_a_format_holds_is_there_again(name: str, data: st.DataObject) -> None:
    """Messages, and every feature that the format claims; every other one is reported as lost."""
    rows = name in ROWS
    tree = data.draw(linear_sessions("" if rows else IMAGE, trained=rows))
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


def test_atropos_groups_are_rows_with_advantages(tmp_path: Path) -> None:
    """Members of a group share a line; a sub-agent's row has its session's score."""
    trees = [load_golden(name)[0] for name in ("subagent", "two_versions")]
    for sample, tree in enumerate(trees):
        tree.record.task, tree.record.group, tree.record.sample = "t", "g", sample
    members = [Member(tree.record.id, n) for n, tree in enumerate(trees)]
    group = Group(id="g", task="t", planned=2, members=members, sealed=True)
    deriver = as_deriver("grpo")
    advantages = deriver.derive(deriver.table([group], trees))
    report = export("atropos", trees, [group], tmp_path / "out", values=advantages)
    line = json.loads((tmp_path / "out" / "groups.jsonl").read_text())
    rows = [row for tree in trees for row in build_rows(tree).rows]
    assert report.written == len(line["tokens"]) == line["group_overrides"]["group_size"]
    assert len(line["tokens"]) == len(rows) > len(trees)
    for number, row in enumerate(rows):
        size = row.input_ids.size
        assert line["tokens"][number][:size] == row.input_ids.tolist()
        trained = [one != -100 for one in line["masks"][number][:size]]
        assert trained == row.loss_mask.tolist()
        logprobs = np.array(line["inference_logprobs"][number], np.float32)[:size]
        assert logprobs[row.loss_mask].tolist() == row.logprobs[row.loss_mask].tolist()
        assert (logprobs[~row.loss_mask] == 1.0).all()
        assert len(line["advantages"][number]) == len(line["tokens"][number])
    import_run("atropos", tmp_path / "out", tmp_path / "back")
    with Run(tmp_path / "back") as run:
        back = list(run.sessions())
        assert not run.check()
    assert len({tree.record.group for tree in back}) == 1
    assert all(turn.exact for tree in back for turn in tree.turns)


def test_atropos_needs_ids(tmp_path: Path) -> None:
    """Sessions of text turns have no rows; the report names them."""
    tree, _ = load_golden("two_versions")
    for turn in tree.turns:
        turn.tokens = None
    report = export("atropos", [tree], [], tmp_path / "out")
    assert report.written == 0
    assert [one.session for one in report.dropped] == [tree.record.id]
