"""The example that compares dense and outcome-only rewards, on a CPU with tiny parts."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajgym.envs.swe.small import small_agent, small_tasks
from trajgym.rollout import ContextFull, Runner, SealedGroup, TokenPolicy
from trajgym.rollout.engines import FakeCall
from trajgym.trajectory import Message, Sampling, Store

torch = pytest.importorskip("torch", reason="install trajgym[local]")
pytest.importorskip("transformers", reason="install trajgym[local]")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "dense"))

arms, learn, slots = map(importlib.import_module, ("arms", "learn", "slots"))
pytestmark = pytest.mark.local


def tiny() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def play(tmp_path: Path, arm: str, samples: int) -> list[SealedGroup]:
    """Let the scripted agent work on one task, with mistakes that depend on the session."""
    (task,) = small_tasks(1, bugs=2)

    def answer(call: FakeCall) -> Message:
        script = small_agent(task, zlib.crc32(call.session.encode()) % 50, mistakes=0.6)
        return script[min(call.turn, len(script) - 1)]

    async def run() -> list[SealedGroup]:
        batches = learn.Batches([task])
        settings = {"samples": samples, "concurrency": 4, **arms.ARMS[arm].settings}
        policy = TokenPolicy.fake(answer)
        async with (
            policy,
            Store(tmp_path / "run") as store,
            Runner(arms.SPEC, batches.read(), policy, store=store, **settings) as runner,
        ):
            batches.more(1)
            return [await anext(runner)]

    return asyncio.run(run())


def test_engine_reports_the_models_own_logprobs() -> None:
    """Sessions of several turns, more of them than slots: every log-prob is the model's."""
    model = tiny()

    async def session(engine: Any, number: int) -> float:
        prompt = list(range(20 + 7 * number))
        worst = 0.0
        for _ in range(3):
            found = await engine.generate(
                prompt,
                sampling=Sampling(temperature=0.8),
                max_tokens=9 + number,
                stop_ids={5, 6},
                session=f"s{number}",
            )
            ids = [*prompt, *found.ids]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits / 0.8, -1)
            wanted = logprobs.gather(1, torch.tensor(found.ids)[:, None])[:, 0]
            worst = max(worst, float((wanted - torch.tensor(found.logprobs)).abs().max()))
            prompt = [*ids, *range(50, 61)]
        return worst

    async def run() -> list[float]:
        engine = slots.SlotEngine(model, slots=3, length=256)
        try:
            return await asyncio.gather(*(session(engine, number) for number in range(7)))
        finally:
            await engine.close()

    assert max(asyncio.run(run())) < 1e-3


@pytest.mark.parametrize("bugs", [4, 5, 6])
def test_a_session_can_check_look_and_edit_for_every_bug(bugs: int) -> None:
    """The scripted agent, which checks after each edit, ends within the turns of a session."""
    (task,) = small_tasks(1, bugs=bugs)
    limits = arms.budgets(bugs)
    assert len(small_agent(task, 0, mistakes=0.0)) <= limits.turns
    assert (limits.turns, limits.seconds) == (max(16, 2 + 3 * bugs), 600.0)


def test_engine_says_when_a_context_is_full() -> None:
    """A prompt that leaves no room ends the attempt, instead of giving a turn without ids."""

    async def run() -> None:
        engine = slots.SlotEngine(tiny(), slots=1, length=64)
        try:
            await engine.generate(
                [1] * 64, sampling=Sampling(temperature=1.0), max_tokens=4, stop_ids=()
            )
        finally:
            await engine.close()

    with pytest.raises(ContextFull, match="64 tokens do not fit"):
        asyncio.run(run())


def test_every_arm_derives_rows_and_facts(tmp_path: Path) -> None:
    """Chains: all derivers give rows; progress adds up to what was mended."""
    sealed = play(tmp_path, "outcome", 4)
    for name in set(arms.ARMS) - {"tree"}:
        values, rows = learn.advantages(name, sealed)
        facts = learn.seen(sealed, values)
        json.dumps(facts)
        assert len(rows) == facts["attempts"] == 4
        assert facts["groups"]["with_gradient"] in {0, 1}
    (one,) = sealed
    table = arms.PROGRESS.table([one.group], one.sessions)
    gains = arms.PROGRESS.derive(table)
    for tree in one.sessions:
        left = [t.signals["tests_failed"] for t in tree.turns if "tests_failed" in t.signals]
        assert gains.of(tree.record.id).sum() == pytest.approx((left[0] - left[-1]) / left[0])


def test_trees_fork_the_sandbox(tmp_path: Path) -> None:
    """Two trees with two rivals each are six attempts, each of them graded."""
    sealed = play(tmp_path, "tree", 2)
    values, rows = learn.advantages("tree", sealed)
    facts = learn.seen(sealed, values)
    assert facts["attempts"] == facts["scored"] == 6
    assert len(rows) == 6


class Row:
    """What the learner reads of a training row."""

    def __init__(self, n: int, advantage: float) -> None:
        self.input_ids = (np.arange(n) % 300).astype(np.int32)
        self.loss_mask = np.arange(n) >= n // 2
        self.logprobs = np.where(self.loss_mask, -5.7, 0).astype(np.float32)
        self.advantage = np.where(self.loss_mask, advantage, 0).astype(np.float32)

    def __len__(self) -> int:
        return len(self.input_ids)


def test_learner_prefers_what_has_an_advantage() -> None:
    """Steps make rows with an advantage likelier; without any, weights stay as they are."""
    model = tiny()
    learner = learn.Learner(model, 1e-3, 100)

    def likelihood() -> float:
        row = Row(30, 1.0)
        with torch.no_grad():
            ids = torch.tensor(row.input_ids[None].astype(np.int64))
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        return float(logprobs.gather(1, ids[0, 1:, None])[14:].mean())

    before = likelihood()
    assert learner.step([Row(30, 0.0)])["useful_rows"] == 0
    assert likelihood() == before
    assert learner.step([Row(30, 1.0), Row(40, 0.0)])["useful_rows"] == 1
    assert likelihood() > before
