"""Expected values made with the methods' official code, for what is here already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.rewards.build import group, session
from trajgym.rewards import GRPO, Advantages, TurnTable

if TYPE_CHECKING:
    from trajgym.trajectory import SessionTree

VECTORS = Path(__file__).parent / "vectors"


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return document


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in load(name)["cases"]]


def verl(scores: list[list[float]], eps: float = 1e-6) -> Advantages:
    """Advantages in verl's convention, one inner list per group."""
    trees: list[SessionTree] = []
    groups = []
    for g, members in enumerate(scores):
        sessions = [session(f"s{g}-{i}", score, group=f"g{g}") for i, score in enumerate(members)]
        trees += sessions
        groups.append(group(*sessions, name=f"g{g}"))
    return GRPO(variant="verl", eps=eps).derive(TurnTable.build(groups, trees))


@pytest.mark.parametrize("case", cases("01_tree_grpo"))
def test_tree_grpo_leaves(case: dict[str, Any]) -> None:
    """Both halves of Tree-GRPO are the group's formula: over a prompt's leaves, and a tree's."""
    leaves = case["inputs"]["leaves"]
    for keys, name in (("prompt", "inter"), ("prompt tree", "intra")):
        labels = [tuple(leaf[key] for key in keys.split()) for leaf in leaves]
        groups = list(dict.fromkeys(labels))
        members = [
            [leaf["reward"] for leaf, label in zip(leaves, labels, strict=True) if label == g]
            for g in groups
        ]
        found = iter(verl(members, case["inputs"]["eps"]).values)
        by_group = {g: iter([next(found) for _ in m]) for g, m in zip(groups, members, strict=True)}
        values = [next(by_group[label]) for label in labels]
        expected = case["expected"][f"{name}_tree_advantage"]
        assert values == pytest.approx(expected, abs=2e-5)


def test_equal_scores_are_exactly_zero() -> None:
    """Where float32 statistics leave noise of up to 0.1, equal scores give exactly 0."""
    noisy = load("01_tree_grpo")["float32_zero_variance_noise"]
    assert noisy
    for entry in noisy:
        assert not verl([[entry["value"]] * entry["n"]]).values.any()


@pytest.mark.parametrize("case", cases("05_ms_grpo"))
def test_episode_returns_relative_to_their_group(case: dict[str, Any]) -> None:
    """MS-GRPO gives each step of an episode the group-relative return of the episode."""
    rewards = case["inputs"]["step_rewards_by_episode"]
    trees = [
        session(name, float(np.sum(steps)), turns=len(steps)) for name, steps in rewards.items()
    ]
    derived = GRPO(variant="verl").derive(TurnTable.build([group(*trees)], trees))
    for name, expected in case["expected"]["step_advantage"].items():
        assert derived.of(name).tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("case", cases("08_dapo_nebius"))
def test_verl_group(case: dict[str, Any]) -> None:
    """The shaped rewards of a group, its failed and its single one, as verl normalises them."""
    expected = case["expected"]
    assert verl([expected["R_final"]]).values.tolist() == pytest.approx(
        expected["advantage"], abs=2e-5
    )


def test_mt_grpo_halves() -> None:
    """MT-GRPO normalises turn and outcome rewards alike, with an epsilon of its own."""
    case = load("10_turn_level_and_misc")["cases"][0]
    for name in ("turn", "outcome"):
        found = verl([case["inputs"][f"{name}_rewards"]], case["inputs"]["eps"]).values
        assert found.tolist() == pytest.approx(case["expected"][f"{name}_advantage"], abs=2e-5)


def test_shared_tokens_have_the_mean_of_their_branches() -> None:
    """ARPO's hard estimate: what three branches share gets the mean of their advantages."""
    case = load("10_turn_level_and_misc")["cases"][1]
    branches = case["inputs"]["branch_advantages"]
    tree = session("s", 0.0, turns=2, forks=[0.0, 0.0])
    shared = TurnTable.build([], [tree]).spread(np.array(branches))
    assert shared[0] == pytest.approx(case["expected"]["shared_token_advantage"], abs=1e-6)
    assert shared[1:].tolist() == branches
