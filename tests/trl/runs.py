"""Recorded runs of the tiny model, and derivers for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.trl.tiny import SPEC, tasks
from trajgym.rewards import GRPO, Advantages, Deriver, TurnTable, apply
from trajgym.rollout import TokenPolicy, collect
from trajgym.rollout.engines import LocalEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import Group, Run, SessionTree, TrainingRow, build_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.trl.tiny import Tiny


class ByTurn(Deriver):
    """Another advantage for every turn."""

    name = "test_by_turn"

    def derive(self, table: TurnTable) -> Advantages:
        values = np.where(table.scored, np.cos(1.0 + table.turn + 2 * table.session), 0.0)
        return Advantages(table, values, self.stamp)


class Recorded(NamedTuple):
    """A run, read back."""

    groups: list[Group]
    trees: list[SessionTree]

    def rows(self, deriver: Deriver | None = None, *, most: int = 99) -> list[Any]:
        """Return pairs of a session and its rows with advantages."""
        table = TurnTable.build(self.groups, self.trees)
        values = (deriver or GRPO()).derive(table)
        return [(tree, apply(build_rows(tree).rows, values)) for tree in self.trees[:most]]


def record(tiny: Tiny, folder: Path, spec: Any = SPEC, **options: Any) -> Recorded:
    """Let the tiny model play and return what was recorded."""
    policy = TokenPolicy(
        LocalEngine(tiny.model(), version=3), TemplateRenderer(tiny.tokenizer), max_tokens=16
    )

    async def play() -> None:
        async with policy:
            settings = {"samples": 4, "concurrency": 4, **options}
            await collect(spec, tasks(4), policy, folder, **settings)

    asyncio.run(play())
    with Run(folder) as run:
        trees = [run.session(s.record.id) for s in run.summaries()]
        return Recorded(list(run.groups()), trees)


def token_loss(model: Any, row: TrainingRow, temperature: float = 1.0, clip: float = 0.2) -> Any:
    """Return ``[T]``: the clipped policy loss of each trained token, plainly computed."""
    import torch

    ids = torch.tensor(row.input_ids[None].astype(np.int64))
    logits = model(input_ids=ids).logits[0, :-1].float() / temperature
    new = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
    trained = torch.tensor(row.loss_mask[1:])
    old = torch.tensor(row.logprobs[1:])
    assert row.advantage is not None
    advantage = torch.tensor(row.advantage[1:])
    ratio = (new - old).exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return loss[trained]


def gradients(model: Any, loss: Any) -> dict[str, Any]:
    """Return the gradient of a loss by parameter."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def farthest(left: dict[str, Any], right: dict[str, Any]) -> float:
    """Return the largest difference of two gradients, relative to the largest entry."""
    assert left.keys() == right.keys()
    scale = max(float(value.abs().max()) for value in right.values())
    apart = max(float((left[name] - value).abs().max()) for name, value in right.items())
    return apart / scale
