"""Rows as AReaL's trajectories, through AReaL's own checks and advantage computation."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.adapters.build import exact_session, groups_of
from tests.conftest import load_golden
from trajgym.adapters.areal import areal_tensors
from trajgym.rewards import GRPO, Advantages, OutcomeReward, Rewards, TurnTable, apply
from trajgym.trajectory import (
    ImageRef,
    InvalidInput,
    InvalidRow,
    SessionTree,
    TrainingRow,
    UnsupportedModality,
    build_rows,
)

STEPS = (0.25, -0.5, 1.0)


def trees() -> list[SessionTree]:
    """Two groups of two; lengths and scores differ."""
    made = []
    for i, score in enumerate((1.0, 0.0, 0.5, 1.0)):
        made.append(
            exact_session(f"s{i}", score, group=f"g{i // 2}", sample=i % 2, turns=2 + i % 2)
        )
    return made


def derived(kind: Any) -> list[TrainingRow]:
    """Rows with another value for each turn."""
    made = trees()
    table = TurnTable.build(groups_of(*made), made)
    values = np.array([STEPS[t] for t in table.turn]) * (1 + np.array(table.session))
    stamped = kind(table, values, GRPO().stamp)
    return apply([row for tree in made for row in build_rows(tree).rows], stamped)


def actor(**options: Any) -> Any:
    from areal.api.cli_args import PPOActorConfig
    from areal.trainer.ppo.actor import PPOActor

    settings = {
        "experiment_name": "e",
        "trial_name": "t",
        "path": "x",
        "backend": "fsdp:d1",
        "kl_ctl": 0.0,
        "use_decoupled_loss": True,
        "adv_norm": None,
        "reward_norm": None,
        **options,
    }
    return PPOActor(PPOActorConfig(**settings), None)


def advantages(trajectory: dict[str, Any], rows: list[TrainingRow], **options: Any) -> list[Any]:
    """AReaL's advantages of each row's trained tokens, in the places of the tokens."""
    (made,) = actor(**options).compute_advantages([copy.deepcopy(trajectory)])
    found = []
    for i, row in enumerate(rows):
        shifted = made["advantages"][i].numpy()
        assert (made["loss_mask"][i, : len(row) - 1].numpy() == row.loss_mask[1:]).all()
        found.append(shifted[np.flatnonzero(row.loss_mask) - 1])
    return found


def test_areal_takes_the_form() -> None:
    """AReaL's own format check passes, and versions are -1 behind a row's end too."""
    from areal.infra.workflow_executor import check_trajectory_format

    rows = derived(Advantages)
    tensors = areal_tensors(rows, turn_ids=True)
    assert check_trajectory_format(tensors, batch_size=len(rows))
    for i, row in enumerate(rows):
        assert (tensors["versions"][i, len(row) :] == -1).all()
        assert (tensors["turn_ids"][i, len(row) :] == -1).all()
        kept = tensors["turn_ids"][i][tensors["loss_mask"][i].bool()].numpy()
        assert (np.diff(kept) >= 0).all()
        assert sorted(set(kept.tolist())) == list(range(len(row.turns)))


def test_advantages_arrive_through_values() -> None:
    """A deriver's advantages, one for each turn, are exactly those that AReaL trains with."""
    rows = derived(Advantages)
    found = advantages(areal_tensors(rows), rows)
    for row, got in zip(rows, found, strict=True):
        assert row.advantage is not None
        np.testing.assert_array_equal(got, row.advantage[row.loss_mask])


def test_dense_rewards_become_returns() -> None:
    """Rewards on turns: a token's advantage is the sum of the rewards from it on."""
    rows = derived(Rewards)
    found = advantages(areal_tensors(rows, dense=True), rows)
    for row, got in zip(rows, found, strict=True):
        assert row.reward is not None
        returns = row.reward[::-1].astype(np.float64).cumsum()[::-1]
        np.testing.assert_allclose(got, returns[row.loss_mask], rtol=1e-6)


def test_scalar_rewards_spread_over_the_row() -> None:
    """One reward for each row: every trained token has it."""
    made = trees()
    table = TurnTable.build(groups_of(*made), made)
    rows = apply([r for t in made for r in build_rows(t).rows], OutcomeReward().derive(table))
    found = advantages(areal_tensors(rows), rows)
    scores = [tree.attempts[0].outcome.score for tree in made]  # type: ignore[union-attr]
    for score, got in zip(scores, found, strict=True):
        np.testing.assert_array_equal(got, np.full(got.size, score, np.float32))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (Advantages, {"gae_lambda": 0.9}),
        (Rewards, {"gae_lambda": 0.9}),
        (Rewards, {"discount": 0.9}),
    ],
    ids=str,
)
def test_values_need_lambda_and_discount_of_one(kind: Any, setting: Any) -> None:
    """With others AReaL computes other advantages: what the lint warns of is real."""
    rows = derived(kind)
    tensors = areal_tensors(rows, dense=True)
    right, wrong = advantages(tensors, rows), advantages(tensors, rows, **setting)
    assert max(np.abs(a - b).max() for a, b in zip(right, wrong, strict=True)) > 0.01


def test_branches_train_shared_tokens_once() -> None:
    """A forked session: each sampled token of the tree is trained in one row."""
    tree, expect = load_golden("fork")
    table = TurnTable.build(groups_of(tree), [tree])
    rows = apply(build_rows(tree).rows, GRPO().derive(table))
    tensors = areal_tensors(rows)
    assert tensors["input_ids"].shape[0] == len(expect["rows"]) > 1
    sampled = sum(int(turn.tokens.sampled_mask.sum()) for turn in tree.turns if turn.tokens)
    assert int(tensors["loss_mask"].sum()) == sampled


def test_what_areal_would_mangle_is_refused() -> None:
    """No rows, no values, a masked tail (AReaL loses its reward), advantages as one number."""
    rows = derived(Advantages)
    with pytest.raises(InvalidInput, match="no rows"):
        areal_tensors([])
    bare = dataclasses.replace(rows[0], advantage=None, advantage_stamp=None)
    with pytest.raises(InvalidInput, match="apply a deriver"):
        areal_tensors([bare])
    with pytest.raises(InvalidInput, match="scalar form"):
        areal_tensors(rows, dense=False)
    pictured = dataclasses.replace(rows[0], images=(ImageRef(0, 1, "ab" * 32, "p"),))
    with pytest.raises(UnsupportedModality):
        areal_tensors([pictured])
    mask = rows[0].loss_mask.copy()
    mask[-1] = False
    with pytest.raises(InvalidRow):
        areal_tensors([dataclasses.replace(rows[0], loss_mask=mask)])
