"""The example of a self-improving archive, as a user runs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from trajgym.trajectory import Run

EXAMPLE = Path(__file__).parents[3] / "examples" / "archive"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(out: Path, generations: int) -> str:
    words = [EXAMPLE / "improve.py", "--out", out, "--generations", str(generations)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_archive_improves_and_is_continued(tmp_path: Path) -> None:
    """Children are better than the first agent; every member has its lineage and its sessions."""
    first = run(tmp_path, 4)
    assert "4: " not in first
    assert "4: " in run(tmp_path, 1)
    archive = load("archive").Archive(tmp_path / "archive.jsonl")
    root, *rest = archive.members
    assert root.score == 0.25
    assert archive.best.score > root.score
    with Run(tmp_path / "edits") as edits:
        sessions = {tree.record.id: tree for tree in edits.sessions()}
    assert len(sessions) == 5
    for member in rest:
        (outcome,) = (a.outcome for a in sessions[member.session].attempts)
        assert outcome is not None
        assert outcome.details["code"] == member.code
        assert archive.lineage(member)[0] == root
        assert archive.members[member.parent].code != member.code
    refused = [t for t in sessions.values() if not t.attempts[0].outcome.passed]  # type: ignore[union-attr]
    assert len(refused) + len(rest) == 5


def test_parents_are_chosen_by_score_and_novelty(tmp_path: Path) -> None:
    """Of equal scores the one with fewer children, of equally many children the better one."""
    module = load("archive")
    archive = module.Archive(tmp_path / "archive.jsonl")
    for number, (parent, score) in enumerate([(None, 0.5), (0, 0.5), (0, 0.9), (2, 0.1)]):
        archive.admit(
            module.Member(id=number, parent=parent, code="", score=score, solved=("plain",))
        )
    weights = archive.weights()
    assert weights[1] > weights[0]
    assert weights[1] > weights[3]
    assert weights[2] > weights[0]
    assert all(weight > 0 for weight in weights)
    again = module.Archive(tmp_path / "archive.jsonl")
    assert again.members == archive.members
