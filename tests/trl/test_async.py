"""TRL's asynchronous GRPO trainer, fed by the rollout worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.trl import cpu
from tests.trl.server import Server, Transfer
from tests.trl.tiny import SPEC, Words, tasks
from trajgym.adapters.trl import RolloutWorker
from trajgym.rewards import Advantages, Deriver
from trajgym.rollout import Retry
from trajgym.trajectory import Run

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.rewards import TurnTable


class ByTurn(Deriver):
    """Another advantage for every turn."""

    name = "test_by_turn"

    def derive(self, table: TurnTable) -> Advantages:
        values = np.where(table.scored, np.cos(table.turn + table.session), 0.0)
        return Advantages(table, values, self.stamp)


def worker_for(args: Any, server: Server, tiny: Any, store: Any, **options: Any) -> RolloutWorker:
    args.vllm_server_base_url = server.url
    settings: dict[str, Any] = {"concurrency": 4, **options}
    spec = settings.pop("spec", SPEC)
    made = RolloutWorker.for_vllm(
        args, spec, tasks(5), model="tiny", tokenizer=tiny.tokenizer, store=store, **settings
    )
    made._engine._retry = Retry(attempts=2, first_wait=0.01)  # type: ignore[attr-defined]
    return made


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("trajgym")]


@pytest.mark.parametrize("deriver", [None, ByTurn()], ids=["grpo", "by-turn"])
def test_it_trains(
    tiny: Any, server: Server, tmp_path: Path, monkeypatch: Any, deriver: Any
) -> None:
    """Two updates from live sessions: finite loss, versions that move, everything in the store."""
    cpu.patch(monkeypatch)
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
    _same_as_the_truth(trees, server)
    scored = [t for t in trees if t.attempts[0].status.scored]
    assert len(scored) >= worker.tally.sessions > 0
    assert worker.tally.dropped.total() == 0
    waiting = worker.rollout_buffer
    assert worker.tally.samples >= waiting.taken + waiting.stale


def _same_as_the_truth(trees: list[Any], server: Server) -> None:
    """Every recorded turn has the ids that the server sampled, and ranges that hold the truth."""
    truth = {tuple(one.prompt): one for one in server.answered}
    seen = 0
    for tree in trees:
        for turn in tree.turns:
            one = truth[tuple(tree.prompt(turn).tolist())]
            if turn.tokens.response_ids.tolist() != one.ids:
                continue  # two sessions can have been given the same prompt
            seen += 1
            ranges = zip(
                turn.tokens.version_low, one.versions, turn.tokens.version_high, strict=True
            )
            assert all(low <= version <= high for low, version, high in ranges)
    assert seen > 0
