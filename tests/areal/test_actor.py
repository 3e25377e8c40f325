"""AReaL's FSDP actor on gloo: log-probs, advantages and a decoupled update from our tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.gradient.case import ByTurn
from tests.gradient.on_areal import gradient_of, make_actor
from tests.trl.runs import record
from trajgym.adapters.areal import areal_tensors


@pytest.fixture(scope="module")
def rows(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Rows of four sessions that the tiny model played itself."""
    made = record(tiny, tmp_path_factory.mktemp("run")).rows(ByTurn(), most=4)
    return [row for _, rows in made for row in rows]


@pytest.fixture(scope="module")
def actor(tiny: Any, rows: list[Any]) -> Iterator[Any]:
    """AReaL's actor with the tiny model's weights, at version 5."""
    made = make_actor(tiny.path, decoupled=True, batches=len(rows))
    made.set_version(5)
    yield made
    made.destroy()


def test_logprobs_are_the_recorded_ones(actor: Any, rows: list[Any]) -> None:
    """AReaL's own log-probs of our ids, one place to the left, are what the policy sampled with."""
    trajectory = areal_tensors(rows)
    (found,) = actor.compute_logp([trajectory])
    for i, row in enumerate(rows):
        trained = np.flatnonzero(row.loss_mask)
        got = found[i].numpy()[trained - 1]
        np.testing.assert_allclose(got, row.logprobs[trained], atol=1e-5)


@pytest.mark.parametrize("method", ["recompute", "loglinear"])
def test_a_decoupled_update_moves_the_weights(
    method: str, tiny: Any, actor: Any, rows: list[Any]
) -> None:
    """Log-probs, advantages, update: every parameter moves, by a finite gradient."""
    actor.actor.config.prox_logp_method = method
    before = {n: p.full_tensor().clone() for n, p in actor.model.named_parameters()}
    batch = [areal_tensors(rows[:2]), areal_tensors(rows[2:])]
    if method == "recompute":
        for trajectory, logprobs in zip(batch, actor.compute_logp(batch), strict=True):
            trajectory["prox_logp"] = logprobs
    ready = actor.compute_advantages(batch)
    wanted = [row.advantage[row.loss_mask] for row in rows]
    got = [t["advantages"][i][t["loss_mask"][i].bool()] for t in ready for i in range(2)]
    for given, found in zip(wanted, got, strict=True):
        np.testing.assert_allclose(found.numpy(), given, atol=1e-6)
    actor.ppo_update(ready)
    gradient = gradient_of(actor)
    assert gradient.keys() == before.keys()
    assert all(np.isfinite(value.numpy()).all() for value in gradient.values())
    after = {n: p.full_tensor() for n, p in actor.model.named_parameters()}
    assert all(not np.array_equal(before[n].detach(), after[n].detach()) for n in before)
