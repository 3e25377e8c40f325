"""The recorded sessions and weights on which the trainers are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trajgym.rewards import Advantages, Deriver, TurnTable, apply
from trajgym.trajectory import Group, IntArray, Run, Sampling, Segment, SessionTree, TrainingRow
from trajgym.trajectory import build_rows as rows_of

CLIP = 0.2
CAP = 5.0
"""Behaviour weights above it are left out, as AReaL does."""


class ByTurn(Deriver):
    """Another advantage for every turn, of both signs."""

    name = "test_by_turn"

    def derive(self, table: TurnTable) -> Advantages:
        values = np.where(table.scored, np.cos(1.0 + table.turn + 2 * table.session), 0.0)
        return Advantages(table, values, self.stamp)


class Case(NamedTuple):
    """A folder with a run and the weights to train, read back."""

    folder: Path
    trees: list[SessionTree]
    groups: list[Group]
    values: Advantages

    @property
    def rows(self) -> list[TrainingRow]:
        return [row for tree in self.trees for row in apply(rows_of(tree).rows, self.values)]

    def model(self) -> Any:
        """Load the weights to train, fresh."""
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            self.folder / "model", dtype=torch.float32
        ).eval()


def load(folder: Path) -> Case:
    """Read what `record` wrote."""
    with Run(folder / "run") as run:
        trees = [run.session(summary.record.id) for summary in run.summaries()]
        groups = list(run.groups())
    trees.sort(key=lambda tree: tree.record.id)
    return Case(folder, trees, groups, ByTurn().derive(TurnTable.build(groups, trees)))


def record(folder: Path) -> Case:
    """Let a tiny model play while its weights change in the middle of turns; fork every session."""
    import torch

    from tests.trl.tiny import make, tasks
    from trajgym.envs import EnvSpec
    from trajgym.rollout import TokenPolicy, TreeExpansion, collect
    from trajgym.rollout.engines import Generation, LocalEngine, TokenEngine
    from trajgym.rollout.rendering import TemplateRenderer

    class Updated(TokenEngine):
        """The first two ids of a response are version 3's, the others version 4's."""

        name, logprob_mode = "updated", "processed"

        def __init__(self, old: Any, new: Any) -> None:
            self.parts = LocalEngine(old, version=3), LocalEngine(new, version=4)

        async def generate(
            self,
            prompt_ids: IntArray | Sequence[int],
            *,
            sampling: Sampling,
            max_tokens: int,
            stop_ids: Collection[int],
            session: str = "",
        ) -> Generation:
            ids: list[int] = []
            logprobs: list[float] = []
            segments: tuple[Segment, ...] = ()
            for engine, most in zip(self.parts, (min(2, max_tokens), max_tokens), strict=True):
                found = await engine.generate(
                    [*map(int, prompt_ids), *ids],
                    sampling=sampling,
                    max_tokens=most - len(ids),
                    stop_ids=stop_ids,
                )
                ids += found.ids
                logprobs += found.logprobs
                segments += found.segments
                if found.finish == "stop" or len(ids) >= max_tokens:
                    break
            return Generation(ids, logprobs, segments, found.finish)

        async def close(self) -> None:
            for engine in self.parts:
                await engine.close()

    # Long answers: most turns are then sampled by both versions.
    tiny = make(folder / "tiny", words=("yes indeed so it is", "no never", "maybe or maybe not"))
    old, new, trained = tiny.model(), tiny.model(), tiny.model()
    _move(new, 1, 0.02)
    _move(trained, 2, 0.02)
    trained.save_pretrained(folder / "model")
    tiny.tokenizer.save_pretrained(folder / "model")
    torch.set_num_threads(1)
    policy = TokenPolicy(Updated(old, new), TemplateRenderer(tiny.tokenizer), max_tokens=12)

    async def play() -> None:
        async with policy:
            await collect(
                EnvSpec(id="test/words"),
                tasks(2),
                policy,
                folder / "run",
                samples=2,
                concurrency=4,
                expansion=TreeExpansion(nodes=2, rounds=1),
            )

    asyncio.run(play())
    return load(folder)


def _move(model: Any, seed: int, size: float) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def save(gradient: dict[str, Any], out: Path) -> None:
    """Write a gradient by parameter."""
    arrays = {name: np.asarray(value.detach().float().cpu()) for name, value in gradient.items()}
    np.savez(out, **arrays)


def distance(gradient: Path, reference: Path) -> float:
    """Return the length of the difference, relative to the reference's; 0 where nothing is off."""
    with np.load(gradient) as left, np.load(reference) as right:
        assert set(left.files) == set(right.files)
        off = sum(np.square(left[n].astype(np.float64) - right[n]).sum() for n in right.files)
        all_ = sum(np.square(right[n].astype(np.float64)).sum() for n in right.files)
    return float(np.sqrt(off / all_))
