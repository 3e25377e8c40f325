"""TRL's asynchronous trainer on the groups of a session server."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.feeding import farm
from tests.trl import cpu
from tests.trl.server import Server, Transfer
from tests.trl.test_worker import failure, until
from trajgym.adapters.trl import FeedWorker
from trajgym.server import Feed
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


def test_it_trains_on_fed_groups(
    tiny: Any, server: Server, tmp_path: Path, monkeypatch: Any
) -> None:
    """Updates from groups of outside agents; each version is announced to their server."""
    cpu.patch(monkeypatch.setattr)
    args = cpu.config(tmp_path, max_steps=2)
    with farm(tmp_path / "run") as agents:
        for i in range(6):
            agents.group(f"g{i}", 1.0, 0.0)
        worker = FeedWorker(Feed(agents.url, wait=1))
        trainer = cpu.trainer(tiny, args, worker, Transfer(server))
        worker.attach(trainer)
        trainer.train()
        version = agents.version
        assert not agents.paused
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 2
    assert all(np.isfinite(log["loss"]) and np.isfinite(log["grad_norm"]) for log in logs)
    assert version == worker.updates[-1][0] == 3
    assert worker.tally.samples >= worker.rollout_buffer.taken > 0


def test_samples_are_the_rows_of_the_store(tmp_path: Path) -> None:
    """Ids, masks and advantages of fed groups are those of the server's own records."""
    with farm(tmp_path) as agents:
        for i in range(3):
            agents.group(f"g{i}", 1.0, 0.0, 0.5)
        rows = agents.rows()
        worker = FeedWorker(Feed(agents.url, wait=0, idle_seconds=1))
        worker.start()
        try:
            samples = [worker.rollout_buffer.get(timeout=60) for _ in range(len(rows))]
            assert "no more tasks" in failure(worker)
            assert agents.acknowledged == {"trainer": 0}
        finally:
            worker.stop()
    assert len(rows) == 9
    for sample in samples:
        row = rows.pop(np.array(sample.input_ids, dtype=np.int32).tobytes())
        np.testing.assert_array_equal(np.array(sample.completion_mask) > 0, row.loss_mask)
        got = np.unique(np.asarray(sample.advantage))
        assert row.advantage is not None
        np.testing.assert_allclose(got, np.unique(row.advantage[row.loss_mask]), rtol=1e-6)
    assert not rows


def test_groups_that_were_not_taken_come_again(tmp_path: Path) -> None:
    """A worker is stopped with samples in its queue: the next one gets their groups."""
    with farm(tmp_path) as agents:
        for i in range(3):
            agents.group(f"g{i}", 1.0, 0.0)
        first = FeedWorker(Feed(agents.url, wait=0))
        first.start()
        until(lambda: first.rollout_buffer.qsize() == 6)
        for _ in range(3):  # all of the first group, half of the second
            first.rollout_buffer.get(timeout=60)
        until(lambda: agents.acknowledged == {"trainer": 2})
        first.stop()
        second = FeedWorker(Feed(agents.url, wait=0, idle_seconds=1))
        second.start()
        try:
            again = [second.rollout_buffer.get(timeout=60) for _ in range(4)]
            assert "no more tasks" in failure(second)
        finally:
            second.stop()
    assert len(again) == second.tally.samples == 4


def test_the_server_holds_calls_during_an_update(tmp_path: Path) -> None:
    """From the pause until the new version is announced, so that no token has the old one."""
    with farm(tmp_path) as agents:
        worker = FeedWorker(Feed(agents.url, wait=0))
        worker.start()
        try:
            until(lambda: worker._loop is not None)
            worker.pause()
            assert agents.paused
            worker.resume()
            assert agents.paused
            worker.update_model_version(1)
            until(lambda: not agents.paused)
            assert agents.version == 1
        finally:
            worker.stop()


def test_a_late_announcement_does_not_end_the_next_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls are held for an update also if the server is still being told of the one before."""
    order: list[str] = []
    announcing, answered = threading.Event(), threading.Event()

    def note(name: str) -> None:
        method = getattr(Feed, name)

        async def call(self: Feed, *arguments: int) -> None:
            if arguments == (1,):
                announcing.set()
                await asyncio.to_thread(answered.wait, 240)
            await method(self, *arguments)
            order.append(" ".join([name, *map(str, arguments)]))

        monkeypatch.setattr(Feed, name, call)

    for name in ("announce", "pause", "resume"):
        note(name)
    with farm(tmp_path) as agents:
        worker = FeedWorker(Feed(agents.url, wait=0))
        worker.start()
        try:
            until(lambda: order == ["announce 0"])
            worker.update_model_version(1)
            assert announcing.wait(240)
            pausing = threading.Thread(target=worker.pause)
            pausing.start()
            pausing.join(1.0)  # it has to wait; if it did not, it would be done by now
            answered.set()
            pausing.join(240)
            assert agents.paused
            worker.update_model_version(2)
            until(lambda: agents.version == 2 and not agents.paused)
        finally:
            worker.stop()
    assert order == ["announce 0", "announce 1", "pause", "announce 2", "resume"]


def test_a_server_of_another_training_is_an_error(tmp_path: Path) -> None:
    """Its versions are higher: tokens would seem older than they are."""
    with farm(tmp_path) as agents:
        agents.run(agents._world.post("/api/control/version", {"version": 7}))
        worker = FeedWorker(Feed(agents.url, wait=0))
        worker.start()
        try:
            assert "409" in failure(worker)
        finally:
            worker.stop()


def test_settings_are_checked(tmp_path: Path) -> None:
    """A deriver of rewards, and a temperature of 0, are errors before anything runs."""
    with pytest.raises(InvalidInput, match="advantages"):
        FeedWorker(Feed("http://127.0.0.1:1"), deriver="outcome")
    with pytest.raises(InvalidInput, match="temperature"):
        FeedWorker(Feed("http://127.0.0.1:1"), temperature=0.0)
