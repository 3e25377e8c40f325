"""The parts of the GPU experiment that a CPU can check."""

# ruff: noqa: E402 - the examples are found through the path
from __future__ import annotations

import asyncio
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gpu"))

import attention
import maze
from lab import Call, busy
from play import DERIVERS, Batches

from tests.trl.tiny import said
from trajgym.adapters.trl._group_samples import SampleBuilder
from trajgym.rollout import Runner, ScriptedPolicy, TokenPolicy, collect
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import Message, Run, Store


def _pieces() -> tuple[Any, Any, Any]:
    """A trunk of five tokens and two branches of three and four."""
    kv = [*range(5), *range(5), *range(5, 8), *range(5), *range(8, 12)]
    return (
        torch.tensor(kv),
        torch.tensor([0, 5, 8, 12], dtype=torch.int32),
        torch.tensor([0, 5, 13, 22], dtype=torch.int32),
    )


def test_a_masked_row_is_what_its_pieces_are_alone() -> None:
    """One mask over the row gives the values and gradients of attention piece by piece."""
    torch.manual_seed(0)
    kv_index, query_starts, key_starts = _pieces()
    parts = [torch.randn(1, heads, 12, 8, requires_grad=True) for heads in (6, 2, 2)]
    module: Any = torch.nn.Linear(1, 1)
    module.config = SimpleNamespace()
    out, _ = attention.masked(
        module,
        *parts,
        None,
        tree_kv_index=kv_index,
        tree_cu_seqlens_q=query_starts,
        tree_cu_seqlens_k=key_starts,
        scaling=8**-0.5,
    )
    query, key, value = (part.transpose(1, 2)[0] for part in parts)
    wanted = attention.plain(query, key[kv_index], value[kv_index], query_starts, key_starts)
    torch.testing.assert_close(out[0], wanted)
    weights = torch.randn_like(wanted)
    found = torch.autograd.grad((out[0] * weights).sum(), parts)
    torch.testing.assert_close(found, torch.autograd.grad((wanted * weights).sum(), parts))


def test_mazes_can_be_solved_and_are_held_out() -> None:
    """An expert reaches every door within the budget; no held-out maze is trained on."""
    for task in maze.tasks(50):
        made = maze.Maze.made(task.data["seed"])
        assert 4 <= made.distance[made.start] <= 7 < maze.TURNS
    trained = {t.data["seed"] for seed in range(60) for t in maze.tasks(3000, seed)}
    assert trained.isdisjoint(t.data["seed"] for t in maze.tasks(3000, held_out=True))


async def test_noise_makes_games_that_fail(tmp_path: Path) -> None:
    """The expert always wins, a noisy walker sometimes, and every step is a legal one."""
    solved = {}
    for noise in (0.0, 0.7):
        policy = ScriptedPolicy(maze.walker(noise), name="walker")
        folder = tmp_path / str(noise)
        report = await collect(maze.SPEC, maze.tasks(40), policy, folder)
        solved[noise] = report.solved
        with Run(folder) as run:
            assert all(t.signals["format_ok"] for s in run.sessions() for t in s.turns)
    assert solved[0.0] == 40
    assert 0 < solved[0.7] < 40


async def test_a_batch_begins_with_every_version() -> None:
    """The first batch is larger; later ones wait for their versions, and none comes before."""
    batches = Batches(maze.tasks(10), first=3, later=2)
    batches.versions.announce(1)
    wanted = iter(maze.tasks(10))
    reading = batches.read()
    for _ in range(3):
        assert await anext(reading) == next(wanted)
    waiting = asyncio.ensure_future(anext(reading))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    batches.versions.announce(2)
    batches.tell()
    assert await waiting == next(wanted)
    assert await anext(reading) == next(wanted)


def test_idle_time_of_the_engine() -> None:
    """Requests that overlap count once; what lies between them is idle."""
    calls = [
        Call("a", 10, [1, 2], [], 0.0, 2.0),
        Call("b", 10, [1], [], 1.0, 3.0),
        Call("c", 10, [1], [], 5.0, 6.0),
    ]
    found = busy(calls, 0.0, 10.0)
    assert found["engine_idle_share"] == pytest.approx(0.6)
    assert found["sampled_tokens_per_s"] == pytest.approx(0.4)


async def test_gigpo_tells_the_turns_of_a_maze_apart(tmp_path: Path) -> None:
    """Attempts meet in the same states, so turns of one session get advantages of their own."""
    chance = random.Random(0)

    def towards(call: FakeCall) -> Message:
        text = bytes(i for i in call.prompt_ids if i < 256).decode().rpartition("Door: ")[2]
        wanted = re.findall(r"\d (\w+)", text)
        ways = re.findall(r"[a-z]+", text.rpartition("Open: ")[2])
        ways = [word for word in ways if word in maze.MOVES]
        good = [word for word in wanted if word in ways]
        return said(chance.choice(good if good and chance.random() < 0.6 else ways))

    build = SampleBuilder(DERIVERS["gigpo"], "auto", allow=["synthetic"])
    samples: list[Any] = []
    async with TokenPolicy.fake(towards) as policy, Store(tmp_path) as store:
        async with Runner(maze.SPEC, maze.tasks(4), policy, store=store, samples=8) as runner:
            async for sealed in runner:
                samples += build(sealed).samples
    by_session: dict[str, set[float]] = {}
    for session, sample in samples:
        by_session.setdefault(session, set()).add(round(sample.advantage, 6))
    assert build.tally.sessions == 32 == build.tally.rows
    assert build.tally.dropped.total() == 0
    assert max(len(values) for values in by_session.values()) >= 4
