"""Expected values made with the methods' official code and the papers' formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import run_case
from tests.vectors.__main__ import main
from trajgym.rewards import GRPO, TurnTable

from .build import group, session

VECTORS = Path(__file__).parent / "vectors"
FILES = sorted(VECTORS.glob("*.json"))
UNSUPPORTED = {
    # Losses are the trainers'.
    "clip_symmetric_0p2_token-mean",
    "clip_symmetric_0p2_seq-mean-token-mean",
    "clip_dapo_0p2_0p28_token-mean",
    "clip_dapo_0p2_0p28_seq-mean-token-mean",
    "clip_nebius_stage1_0p2_0p3_seq-mean-token-mean",
    "clip_nebius_stage2_0p2_0p26_seq-mean-token-mean",
    # Judges' votes and hints belong to annotators; case memory to exports.
    "openclaw_vote_clear",
    "openclaw_vote_single",
    "openclaw_combined_advantage",
    "memento_softmax_retrieval",
}


def documents() -> list[Any]:
    return [json.loads(path.read_text()) for path in FILES]


CASES = [
    pytest.param(case, document, id=case["name"])
    for document in documents()
    for case in document["cases"]
]


@pytest.mark.parametrize(("case", "document"), CASES)
def test_case(case: dict[str, Any], document: dict[str, Any]) -> None:
    """The library gives what the case expects, or it has no part in it, by name."""
    result = run_case(case, document)
    wanted = "unsupported" if case["name"] in UNSUPPORTED else "pass"
    assert result.status == wanted, result.detail


@pytest.mark.parametrize(
    ("case", "document"), [case for case in CASES if case.id not in UNSUPPORTED]
)
def test_wrong_number_fails(case: dict[str, Any], document: dict[str, Any]) -> None:
    """No case passes by accident: with one expected number changed, it fails."""
    spoiled = json.loads(json.dumps(case))
    assert _spoil(spoiled["expected"]), "the case expects nothing"
    assert run_case(spoiled, document).status == "fail"


def _spoil(expected: Any) -> bool:
    """Change the first number or text in place; False if there is none."""
    items = list(expected.items() if isinstance(expected, dict) else enumerate(expected))
    for key, value in items:
        if isinstance(key, str) and key.endswith("UNVERIFIED"):
            continue
        if isinstance(value, dict | list):
            if _spoil(value):
                return True
        elif isinstance(value, str):
            expected[key] = "something else"
            return True
        elif value is not None:
            expected[key] = not value if isinstance(value, bool) else value + 0.01
            return True
    return False


def test_equal_scores_are_exactly_zero() -> None:
    """Where float32 statistics leave noise of up to 0.1, equal scores give exactly 0."""
    noisy = json.loads((VECTORS / "01_tree_grpo.json").read_text())["float32_zero_variance_noise"]
    assert noisy
    for entry in noisy:
        trees = [session(f"s{i}", entry["value"]) for i in range(entry["n"])]
        derived = GRPO(variant="verl").derive(TurnTable.build([group(*trees)], trees))
        assert not derived.values.any()


def write(path: Path, *cases: dict[str, Any]) -> str:
    path.write_text(json.dumps({"method": "m", "tolerance": 1e-6, "cases": list(cases)}))
    return str(path)


def budget(leaves: int) -> dict[str, Any]:
    inputs = {"M": 2, "N": 2, "L": 1, "T": 1}
    return {"name": f"leaves {leaves}", "inputs": inputs, "expected": {"leaves": leaves}}


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 for all passes, 1 for a failure, 2 for unsupported cases, 3 for an unreadable file."""
    strange = {"name": "strange", "inputs": {"hats": 3}, "expected": {"heads": 3}}
    partial = budget(6) | {"name": "partial", "expected": {"leaves": 6, "roots": 1}}
    good = write(tmp_path / "good.json", budget(6))
    assert main([good]) == 0
    assert main([good, write(tmp_path / "odd.json", strange, partial)]) == 2
    assert main([write(tmp_path / "bad.json", budget(7), strange)]) == 1
    assert main([good, str(tmp_path / "none.json")]) == 3
    assert main([]) == 3
    said = capsys.readouterr().out
    assert "unsupported  strange: no method takes inputs ['hats']" in said
    assert "unsupported  partial: eptree_leaves gives no roots" in said
    assert "fail         leaves 7: eptree_leaves: leaves: expected 7, found 6" in said
