"""Our estimators against verl's own, on the arrays that its trainer would get.

They run in an environment with verl (`make test-verl`); the main suite leaves them out.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.adapters.build import exact_session, groups_of
from trajgym.rewards import GRPO, RLOO, Advantages, Deriver, OutcomeReward, TurnTable, apply
from trajgym.rewards.tokens import gae, gae_row, whiten
from trajgym.trajectory import SessionTree, TrainingRow, build_rows

pytestmark = [
    pytest.mark.verl,
    pytest.mark.filterwarnings("ignore"),  # of verl and what it imports
]

CLOSE = {"rtol": 2e-4, "atol": 2e-5}
"""verl computes in float32, we in float64."""


@pytest.fixture(scope="module")
def verl() -> Any:
    """The module of verl's estimators; importing it takes a quarter of a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("verl.trainer.ppo.core_algos")


class Batch(NamedTuple):
    """Rows of one batch, padded as verl pads them: ``[B, T]`` each."""

    rows: list[TrainingRow]
    rewards: Any
    mask: Any
    index: np.ndarray[Any, Any]


def sessions(seed: int, *, sizes: tuple[int, ...] = (4, 3, 6, 1)) -> list[SessionTree]:
    """Groups of those sizes, with scores, numbers of turns and tokens that differ."""
    rng = np.random.default_rng(seed)
    trees = []
    for group, size in enumerate(sizes):
        for sample in range(size):
            trees.append(
                exact_session(
                    f"g{group}-{sample}",
                    float(rng.choice([0.0, 0.2, 0.8, 1.0, rng.normal()])),
                    group=f"g{group}",
                    sample=sample,
                    turns=int(rng.integers(1, 5)),
                    tokens=int(rng.integers(1, 7)),
                )
            )
    return trees


def table_of(trees: list[SessionTree]) -> TurnTable:
    return TurnTable.build(groups_of(*trees), trees)


def batch_of(trees: list[SessionTree], *, steps: int | None = None) -> Batch:
    """Return the batch that verl would get; with ``steps``, every turn earns something too."""
    import torch

    table = table_of(trees)
    rewards = OutcomeReward().derive(table)
    rows = apply([row for tree in trees for row in build_rows(tree).rows], rewards)
    if steps is not None:
        rng = np.random.default_rng(steps)
        for row in rows:
            assert row.reward is not None
            row.reward[row.turn_ends] += rng.normal(size=row.turn_ends.size).astype(np.float32)
    names = {tree.record.id: tree.record.group for tree in trees}
    return Batch(
        rows,
        torch.from_numpy(padded([row.reward for row in rows])),
        torch.from_numpy(padded([row.loss_mask for row in rows])),
        np.array([names[row.session] for row in rows], dtype=object),
    )


def padded(arrays: list[Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    found = np.zeros((len(arrays), 3 + max(array.size for array in arrays)), np.float32)
    for place, array in zip(found, arrays, strict=True):
        place[: array.size] = array
    return found


def ours(deriver: Deriver, trees: list[SessionTree], batch: Batch) -> Any:
    values = deriver.derive(table_of(trees))
    assert isinstance(values, Advantages)
    return padded([row.advantage for row in apply(batch.rows, values)])


@pytest.mark.parametrize("seed", range(20))
def test_grpo(verl: Any, seed: int) -> None:
    """The variant `verl` gives verl's advantages on every token, a group of one included."""
    trees = sessions(seed)
    batch = batch_of(trees)
    theirs, _ = verl.compute_grpo_outcome_advantage(batch.rewards, batch.mask, batch.index)
    np.testing.assert_allclose(ours(GRPO(variant="verl"), trees, batch), theirs.numpy(), **CLOSE)


@pytest.mark.parametrize("seed", range(20))
def test_grpo_without_std(verl: Any, seed: int) -> None:
    """The variant `mean_only` is verl's GRPO without the std, for groups of two and more."""
    trees = sessions(seed, sizes=(4, 2, 7))
    batch = batch_of(trees)
    theirs, _ = verl.compute_grpo_outcome_advantage(
        batch.rewards, batch.mask, batch.index, norm_adv_by_std_in_grpo=False
    )
    found = ours(GRPO(variant="mean_only"), trees, batch)
    np.testing.assert_allclose(found, theirs.numpy(), **CLOSE)


@pytest.mark.parametrize("seed", range(20))
def test_rloo(verl: Any, seed: int) -> None:
    """RLOO's variant `verl` gives verl's advantages, a group of one included."""
    trees = sessions(seed)
    batch = batch_of(trees)
    theirs, _ = verl.compute_rloo_outcome_advantage(batch.rewards, batch.mask, batch.index)
    np.testing.assert_allclose(ours(RLOO(variant="verl"), trees, batch), theirs.numpy(), **CLOSE)


def lines(rows: list[TrainingRow], width: int) -> tuple[Any, Any, Any]:
    """Rewards and mask of the padded batch as one line, and where its rows start."""
    rewards = np.concatenate([np.pad(row.reward, (0, width - len(row))) for row in rows])  # type: ignore[arg-type]
    mask = np.concatenate([np.pad(row.loss_mask, (0, width - len(row))) for row in rows])
    return rewards, mask, np.arange(len(rows) + 1) * width


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("seed", range(10))
def test_reinforce_plus_plus(verl: Any, seed: int, gamma: float) -> None:
    """Discounted returns, whitened over the batch: `gae` without a critic, and `whiten`."""
    from verl.trainer.config import AlgoConfig

    batch = batch_of(sessions(seed), steps=seed)
    theirs, returns = verl.compute_reinforce_plus_plus_outcome_advantage(
        batch.rewards, batch.mask, config=AlgoConfig(gamma=gamma)
    )
    rewards, mask, starts = lines(batch.rows, batch.mask.shape[1])
    found = gae(
        rewards, np.zeros(mask.size), mask=mask, starts=starts, gamma=gamma, lambda_policy=1.0
    )
    shape = tuple(batch.mask.shape)
    np.testing.assert_allclose(found.advantages.reshape(shape), returns.numpy(), **CLOSE)
    whitened = whiten(found.advantages, mask).reshape(shape)
    np.testing.assert_allclose(whitened, theirs.numpy(), **CLOSE)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.99, 0.0)])
@pytest.mark.parametrize("seed", range(5))
def test_gae(verl: Any, seed: int, gamma: float, lam: float) -> None:
    """Advantages and value targets agree on every sampled token; observations are skipped."""
    import torch

    batch = batch_of(sessions(seed), steps=seed)
    shape = tuple(batch.mask.shape)
    critic = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    theirs, returns = verl.compute_gae_advantage_return(
        batch.rewards, torch.from_numpy(critic), batch.mask, gamma, lam
    )
    on = batch.mask.numpy() > 0
    rewards, mask, starts = lines(batch.rows, shape[1])
    found = gae(
        rewards,
        critic.ravel(),
        mask=mask,
        starts=starts,
        gamma=gamma,
        lambda_policy=lam,
        lambda_critic=lam,
    )
    targets = found.value_targets.reshape(shape)
    np.testing.assert_allclose(targets[on], returns.numpy()[on], **CLOSE)
    whitened = whiten(found.advantages, mask).reshape(shape)
    np.testing.assert_allclose(whitened[on], theirs.numpy()[on], **CLOSE)
    for row, values, line in zip(batch.rows, critic, found.advantages.reshape(shape), strict=True):
        one = gae_row(row, values[: len(row)], gamma=gamma, lambda_policy=lam).advantage
        np.testing.assert_allclose(one, line[: len(row)], rtol=1e-5, atol=1e-6)


def test_equal_rewards_are_where_we_differ(verl: Any) -> None:
    """Twelve rewards of 0.2 teach nothing: we give exactly 0, verl's float32 gives noise."""
    trees = [exact_session(f"s{i}", 0.2, sample=i) for i in range(12)]
    batch = batch_of(trees)
    theirs, _ = verl.compute_grpo_outcome_advantage(batch.rewards, batch.mask, batch.index)
    assert float(theirs.abs().max()) > 0.01
    assert not ours(GRPO(variant="verl"), trees, batch).any()
