"""TRL, verl and AReaL compute one gradient from the same recorded sessions."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.gradient.case import Case, distance, record, save
from tests.gradient.conftest import PYTHONS, ROOT
from tests.gradient.reference import reference

pytestmark = pytest.mark.timeout(900)

SAME = 1e-5
OTHER = 1e-2
OBJECTIVES = ("coupled", "decoupled")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Forked sessions, turns sampled by two versions, an advantage for each turn."""
    made = record(tmp_path_factory.mktemp("gradient"))
    for objective in OBJECTIVES:
        gradient = reference(made.model(), made.rows, decoupled=objective == "decoupled")
        save(gradient, made.folder / f"reference_{objective}.npz")
    return made


def run(trainer: str, case: Case, objective: str) -> Path:
    """Let a trainer compute its gradient in its own environment."""
    out = case.folder / f"{trainer}_{objective}.npz"
    if not out.exists():
        command = [PYTHONS[trainer], "-m", f"tests.gradient.on_{trainer}"]
        done = subprocess.run(
            [*command, case.folder, out, objective],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    return out


def off(trainer: str, case: Case, objective: str, against: str = "") -> float:
    found = distance(
        run(trainer, case, objective), case.folder / f"reference_{against or objective}.npz"
    )
    print(f"{trainer:6} {objective:10} against {against or objective:10} {found:.1e}")
    return found


def test_the_case_has_what_could_go_wrong(case: Case) -> None:
    """Branches, two versions inside turns, several advantages in a row, ratios beyond the clip."""
    rows = case.rows
    assert len(rows) > len(case.trees)
    mixed = [r for r in rows for t in r.turns if np.unique(r.version_low[r.turn_ids == t]).size > 1]
    assert mixed
    assert any(np.unique(row.advantage[row.loss_mask]).size > 1 for row in rows)
    # Without clipping, negated advantages would give the negated gradient.
    negated = reference(case.model(), case._replace(values=-1.0 * case.values).rows)
    save(negated, case.folder / "negated.npz")
    apart = distance(case.folder / "negated.npz", case.folder / "reference_coupled.npz")
    assert abs(apart - 2.0) > OTHER


@pytest.mark.parametrize(
    ("trainer", "objective"),
    [
        ("trl", "coupled"),
        ("verl", "coupled"),
        ("areal", "coupled"),
        ("verl", "decoupled"),
        ("areal", "decoupled"),
    ],
)
def test_the_gradient_is_the_references(trainer: str, objective: str, case: Case) -> None:
    """A trainer set to the objective has the reference's gradient, but for float32's rounding."""
    assert off(trainer, case, objective) < SAME


@pytest.mark.parametrize("shift", [1, -1])
@pytest.mark.parametrize("name", ["advantage", "logprobs", "loss_mask"])
def test_a_shift_by_one_token_would_show(name: str, shift: int, case: Case) -> None:
    """One array one token off gives a gradient that is a thousand times farther than allowed."""
    shifted = [
        dataclasses.replace(row, **{name: np.roll(getattr(row, name), shift)}) for row in case.rows
    ]
    save(reference(case.model(), shifted), case.folder / "shifted.npz")
    assert distance(case.folder / "shifted.npz", case.folder / "reference_coupled.npz") > OTHER


def test_trl_has_no_decoupled_objective(case: Case) -> None:
    """TRL's ratio is against the behaviour policy: with stale sessions it is another gradient."""
    assert off("trl", case, "coupled", against="decoupled") > OTHER


def test_verl_clips_twice_unless_told(case: Case) -> None:
    """By default, verl's clip_ratio_c=3 bounds the loss of bad tokens that became likelier."""
    assert off("verl", case, "default", against="coupled") > OTHER


def test_areal_needs_flash_attention_for_packed_batches(case: Case) -> None:
    """With sdpa, sequences that AReaL packs into a micro-batch see each other."""
    assert off("areal", case, "packed", against="coupled") > OTHER
