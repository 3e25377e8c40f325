"""TRL's asynchronous GRPO trainer, fed by the rollout worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.trl import cpu
from tests.trl.runs import ByTurn
from tests.trl.server import Server, Transfer
from tests.trl.tiny import SPEC, Words, tasks
from trajgym.adapters.trl import RolloutWorker
from trajgym.envs import Budgets
from trajgym.rollout import Retry
from trajgym.trajectory import Run

if TYPE_CHECKING:
    from pathlib import Path


def worker_for(args: Any, server: Server, tiny: Any, store: Any, **options: Any) -> RolloutWorker:
    args.vllm_server_base_url = server.url
    settings: dict[str, Any] = {"concurrency": 4, **options}
    spec = settings.pop("spec", SPEC)
    made = RolloutWorker.for_vllm(
        args, spec, tasks(5), model="tiny", tokenizer=tiny.tokenizer, store=store, **settings
    )
    made._engine._retry = Retry(tries=2, first_wait=0.01)  # type: ignore[attr-defined]
    return made


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("trajgym")]


@pytest.mark.parametrize("deriver", [None, ByTurn()], ids=["grpo", "by-turn"])
def test_it_trains(
    tiny: Any, server: Server, tmp_path: Path, monkeypatch: Any, deriver: Any
) -> None:
    """Two updates from live sessions: finite loss, versions that move, everything in the store."""
    cpu.patch(monkeypatch.setattr)
    args = cpu.config(tmp_path, max_steps=3)
    worker = worker_for(args, server, tiny, tmp_path / "run", deriver=deriver, stream=True)
    transfer = Transfer(server)
    trainer = cpu.trainer(tiny, args, worker, transfer)
    worker.attach(trainer)
    opened, closed = Words.opened, Words.closed
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 3
    assert all(np.isfinite(log["loss"]) and np.isfinite(log["grad_norm"]) for log in logs)
    # Until the first update the trainer's log-probs are the sampler's.
    assert logs[0]["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert 0 <= logs[0]["reward"] <= 1
    assert transfer.sent == 4
    assert [version for version, _ in worker.updates] == [1, 2, 3, 4]
    assert Words.opened - opened == Words.closed - closed > 0
    assert threads() == []
    with Run(tmp_path / "run") as run:
        assert run.check() == []
        trees = [run.session(s.record.id) for s in run.summaries()]
    same_as_the_truth(trees, server)
    scored = [t for t in trees if t.attempts[0].status.scored]
    assert len(scored) >= worker.tally.sessions > 0
    assert worker.tally.dropped.total() == 0
    waiting = worker.rollout_buffer
    assert worker.tally.samples >= waiting.taken + waiting.stale


def same_as_the_truth(trees: list[Any], server: Server) -> None:
    """Every recorded turn has the ids that the server sampled, and ranges that hold the truth."""
    truth = {one.seed: one for one in server.answered}
    assert len(truth) == len(server.answered)
    turns = [(tree, turn) for tree in trees for turn in tree.turns]
    assert turns
    for tree, turn in turns:
        one = truth[turn.sampling.seed]
        assert tree.prompt(turn).tolist() == one.prompt
        assert turn.tokens.response_ids.tolist() == one.ids
        ranges = zip(turn.tokens.version_low, turn.tokens.version_high, one.versions, strict=True)
        assert all(low <= version <= high for low, high, version in ranges)


@pytest.mark.smollm2
def test_a_real_model_takes_a_step(tmp_path: Path, monkeypatch: Any) -> None:
    """SmolLM2-135M plays and is trained for one update; both sides agree on its log-probs."""
    from transformers import AutoTokenizer

    from tests.trl.server import serving
    from tests.trl.tiny import Tiny
    from trajgym.rollout.engines import save_smollm2

    folder = str(save_smollm2(tmp_path / "model"))
    real = Tiny(folder, AutoTokenizer.from_pretrained(folder))
    cpu.patch(monkeypatch.setattr)
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "max_completion_length": 4}
    args = cpu.config(tmp_path, **options, learning_rate=1e-5)
    with serving(real) as server:
        budgets = Budgets(turns=2)
        worker = worker_for(args, server, real, tmp_path / "run", concurrency=2, budgets=budgets)
        trainer = cpu.trainer(real, args, worker, Transfer(server))
        worker.attach(trainer)
        trainer.train()
    (log,) = [log for log in trainer.state.log_history if "loss" in log]
    assert np.isfinite(log["loss"])
    assert log["ratio"] == pytest.approx(1.0, abs=1e-3)
