"""Rollout workers in separate processes, also with faults."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.trl import cpu
from tests.trl.elsewhere import broken, broken_there, make
from tests.trl.server import Server, Transfer
from tests.trl.test_async import same_as_the_truth
from tests.trl.test_worker import until
from tests.trl.tiny import SPEC, tasks
from trajgym.adapters.trl import RolloutFailed, RolloutProcesses, Shard, Tally
from trajgym.adapters.trl._health import Health
from trajgym.rollout.fleet import Fleet, FleetLimits
from trajgym.trajectory import InvalidInput, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trajgym.trajectory import SessionTree

STALE = 60.0


@contextmanager
def working(
    server: Server,
    tiny: Any,
    folder: Path,
    *,
    processes: int = 1,
    queue_maxsize: int = 128,
    limits: FleetLimits | None = None,
    **options: Any,
) -> Iterator[RolloutProcesses]:
    """Run a process over the server while the block runs, and see that it leaves nothing."""
    marks = folder / "marks"
    marks.mkdir()
    made = partial(make, server.url, tiny.path, folder / "run", marks, **options)
    process = RolloutProcesses(
        made, processes=processes, queue_maxsize=queue_maxsize, limits=limits
    )
    process.versions.watched = True
    process.update_model_version(1)
    process.start()
    try:
        yield process
    finally:
        process.stop()
        assert process.pids == []
        assert multiprocessing.active_children() == []
        until(lambda: server.running == 0)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def failure(process: RolloutProcesses, stale_after_s: float = STALE, part: str = "") -> str:
    """Wait until the process is unhealthy for a reason that has a part, and return the reason."""
    found: list[str] = []

    def sick() -> bool:
        try:
            process.check_health(stale_after_s)
        except RolloutFailed as error:
            found.append(str(error))
        return bool(found) and part in found[-1]

    until(sick)
    return found[-1]


def test_it_trains(tiny: Any, server: Server, tmp_path: Path, monkeypatch: Any) -> None:
    """Updates from another process's sessions; every token has the version that sampled it."""
    cpu.patch(monkeypatch.setattr)
    # Without a bound, what waits in the queue before the first update can be enough for all steps.
    options = {"max_steps": 3, "max_staleness": 0}
    args = cpu.config(tmp_path, **options, vllm_server_base_url=server.url)
    worker = RolloutProcesses.for_vllm(
        args,
        SPEC,
        tasks(5),
        model="tiny",
        tokenizer=tiny.tokenizer,
        store=tmp_path / "run",
        stream=True,
        concurrency=4,
        processes=2,
    )
    trainer = cpu.trainer(tiny, args, worker, Transfer(server))
    worker.attach(trainer)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 3
    assert all(np.isfinite(log["loss"]) and np.isfinite(log["grad_norm"]) for log in logs)
    assert logs[0]["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert any("reward" in log for log in logs)
    assert [version for version, _ in worker.updates] == [1, 2, 3, 4]
    with Run(tmp_path / "run") as run:
        assert run.check() == []
        trees = [run.session(s.record.id) for s in run.summaries()]
    same_as_the_truth(trees, server)
    known = {v for t in trees for turn in t.turns if turn.tokens for v in turn.tokens.version_low}
    assert len(known) > 1
    tally, buffer = worker.tally, worker.rollout_buffer
    assert tally.sessions > 0
    assert tally.dropped.total() == 0
    assert tally.samples >= buffer.taken + buffer.stale + worker.discarded


def test_samples_are_exactly_what_the_account_says(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """Every counted session is passed on once, and whole."""
    with working(server, tiny, tmp_path, many=3, processes=2, form="turn") as process:
        assert "no more tasks" in failure(process)
        tally = process.tally
        samples = [process.rollout_buffer.get(timeout=240) for _ in range(tally.samples)]
        with pytest.raises(queue.Empty):
            process.rollout_buffer.get_nowait()
        assert tally.trained == 6
        metrics = [process.metrics_queue.get(timeout=240) for _ in range(tally.groups)]
    with Run(tmp_path / "run") as run:
        trees = [run.session(s.record.id) for s in run.summaries()]
    assert tally.sessions == len(trees) == 6
    assert tally.samples == sum(len(tree.turns) for tree in trees) == 18
    given = {tuple(s.input_ids[s.completion_mask > 0].tolist()) for s in samples}
    assert given == {
        tuple(t.tokens.response_ids.tolist()) for tree in trees for t in tree.turns if t.tokens
    }
    assert sum(one["reward"][1] for one in metrics) == 6
    assert list((tmp_path / "marks").iterdir()) == []


def test_an_update_while_the_fleet_is_made(
    server: Server, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the fleet, also between its construction and its first version."""
    set_version = Fleet.set_version

    async def slow(fleet: Fleet, version: int) -> None:
        await set_version(fleet, version)
        if version == 1:
            process.update_model_version(2)
            for _ in range(3):
                await asyncio.sleep(0)

    monkeypatch.setattr(Fleet, "set_version", slow)
    process = RolloutProcesses(partial(make, server.url, tiny.path, tmp_path, tmp_path))
    process.update_model_version(1)
    process.start()
    try:
        assert process.rollout_buffer.get(timeout=240).model_version >= 1
        assert process._fleet is not None
        assert process._fleet.version == 2
    finally:
        process.stop()


def test_a_full_queue_holds_the_process_back(server: Server, tiny: Any, tmp_path: Path) -> None:
    """While no samples are taken, no sessions begin; they begin again when samples are taken."""
    with working(server, tiny, tmp_path, queue_maxsize=2) as process:
        until(process.rollout_buffer.full)
        process.check_health(STALE)
        before = server.tokens
        for _ in range(60):
            process.rollout_buffer.get(timeout=240)
        assert server.tokens > before
        until(process.rollout_buffer.full)
    # Stopping did not wait for room, and what came too late is counted.
    assert process.tally.samples >= process.rollout_buffer.taken + process.discarded


def sampled(tree: SessionTree) -> tuple[int, ...]:
    """Return the ids that a session sampled."""
    turns = [turn.tokens for turn in tree.turns if turn.tokens]
    return tuple(i for tokens in turns for i in tokens.response_ids.tolist())


def test_killed_processes_are_replaced_and_nothing_is_counted_twice(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """After kill -9 every sample is trained once, and acknowledged turns of the others stay.

    What nobody has taken holds the processes back: at each kill, tasks are left.
    """
    kills, killed = [3, 9], []
    options = {"many": 20, "processes": 2, "concurrency": 4, "queue_maxsize": 2}
    with working(server, tiny, tmp_path, **options) as process:
        taken = []
        while len(taken) < 40:
            taken.append(process.rollout_buffer.get(timeout=240))
            if kills and len(taken) > kills[0]:
                del kills[0]
                until(lambda: process.pids)
                killed.append(process.pids[0])
                os.kill(killed[-1], signal.SIGKILL)
                until(lambda: process.deaths == len(killed))
        assert "no more tasks" in failure(process)
        tally, deaths = process.tally, process.deaths
    assert deaths == 2
    with Run(tmp_path / "run") as run:
        assert run.check() == []
        trees = [run.session(s.record.id) for s in run.summaries()]
        groups = list(run.groups())
    scored = [tree for tree in trees if tree.attempts[0].status.scored]
    assert {str(t.attempts[0].status) for t in trees if t not in scored} <= {"interrupted"}
    assert len({(t.record.task, t.record.sample) for t in scored}) == len(scored) == 40
    assert all(group.sealed and len(group.counted) == 2 for group in groups)
    assert (tally.groups, tally.sessions, tally.trained) == (20, 40, 40)
    ids = [tuple(one.input_ids[one.completion_mask > 0].tolist()) for one in taken]
    assert Counter(ids) == Counter(map(sampled, scored))


def test_a_stopped_process_is_replaced_and_does_not_block_the_trainer(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """One that reads nothing, even more commands than its pipe holds, is killed and replaced."""
    limits = FleetLimits(answer=20.0)  # its successors answer in time on any machine
    with working(server, tiny, tmp_path, limits=limits) as process:
        process.rollout_buffer.get(timeout=240)
        os.kill(process.pids[0], signal.SIGSTOP)
        for version in range(2, 5_000):
            process.update_model_version(version)
        until(lambda: process.deaths, 240)
        while process.rollout_buffer.get(timeout=240).model_version < 4_000:
            pass
        process.check_health(STALE)


def test_a_process_that_does_not_start_is_an_error(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """After as many attempts as the limits say."""
    limits = FleetLimits(start=0.01, starts=2)
    with working(server, tiny, tmp_path, limits=limits) as process:
        assert "did not start within 0.01 s" in failure(process)


@pytest.mark.parametrize("then", ["wait", "leave"])
def test_it_ends_with_the_trainers_process(
    server: Server, tiny: Any, tmp_path: Path, then: str
) -> None:
    """When the trainer is killed or ends without stop, sessions are closed and nothing is left."""
    marks = tmp_path / "marks"
    marks.mkdir()
    command = [sys.executable, "-m", "tests.trl.elsewhere", server.url, tiny.path]
    command += [str(tmp_path / "run"), str(marks), then]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        if then == "wait":
            assert all(map(exists, pids))
            trainer.kill()
        else:
            assert trainer.wait(240) == 0
    until(lambda: not any(map(exists, pids)))
    assert list(marks.iterdir()) == []
    with Run(tmp_path / "run") as run:
        assert run.check() == []
        assert list(run.summaries())


def test_terminating_a_process_closes_its_sessions(
    server: Server, tiny: Any, tmp_path: Path
) -> None:
    """SIGTERM leaves nothing open; SIGINT, which is meant for the trainer, does nothing."""
    marks = tmp_path / "marks"
    with working(server, tiny, tmp_path) as process:
        process.rollout_buffer.get(timeout=240)
        first = process.pids[0]
        os.kill(first, signal.SIGINT)
        process.check_health(STALE)
        assert process.deaths == 0
        os.kill(first, signal.SIGTERM)
        until(lambda: process.deaths, 240)
        assert list(marks.glob(f"{first}-*")) == []
        process.rollout_buffer.get(timeout=240)


def test_a_worker_that_fails_says_why(server: Server, tiny: Any, tmp_path: Path) -> None:
    """Of making it, here or in a process, and if all its sessions fail."""
    process = RolloutProcesses(broken)
    process.start()
    assert "EOFError('no tasks today')" in failure(process)
    process.stop()
    made = partial(broken_there, server.url, tiny.path, tmp_path / "there", tmp_path)
    process = RolloutProcesses(made, processes=2)
    process.start()
    assert "InvalidInput('no engine there')" in failure(process)
    process.stop()
    with working(server, tiny, tmp_path, fail=True) as other:
        assert "members left: {'failed:env': " in failure(other, 1.0, "groups had none")


def test_another_worker_than_promised_is_refused(server: Server, tiny: Any, tmp_path: Path) -> None:
    """The trainer's side was compared with settings that the worker must really have."""
    made = partial(make, server.url, tiny.path, tmp_path, tmp_path, temperature=0.5)
    process = RolloutProcesses(made)
    process.start()
    assert "temperature=0.5" in failure(process)
    process.stop()


def test_a_shard_is_a_part_of_everything() -> None:
    """Each task is one worker's, and parts of a number make it up."""
    shards = [Shard(i, 3) for i in range(3)]
    given = tasks(8)
    parts = [shard.tasks(given) for shard in shards]
    assert sorted(task.id for part in parts for task in part) == [task.id for task in given]
    assert [shard.part(8) for shard in shards] == [3, 3, 2]
    assert len({shard.store("run") for shard in shards}) == 3
    with pytest.raises(InvalidInput, match="2 tasks are too few for 3"):
        shards[0].tasks(given[:2])


def test_counts_add_up() -> None:
    """Groups without samples count from the last one that had some."""
    gives = Tally(groups=1, sessions=2, trained=2, rows=3, samples=3)
    both = Tally(groups=3, barren=2).plus(gives)
    assert both == Tally(groups=4, sessions=2, trained=2, rows=3, samples=3)
    assert both.plus(Tally(groups=1, barren=1)).plus(Tally(groups=1, barren=1)).barren == 2


def test_what_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, a standstill and groups without samples are; waiting for a first group is not."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def worker(**changed: Any) -> Health:
        usual: dict[str, Any] = {"running": True, "exhausted": False, "error": ""}
        usual |= {"beat_at": now, "sample_at": now - 90, "tally": Tally(groups=3)}
        return Health(**usual | changed)

    worker().check(60)
    for sick, why in (
        (worker(tally=Tally(groups=3, barren=2)), "no sample for 9"),
        (worker(error="it broke"), "it broke"),
        (worker(beat_at=now - 70), "has been blocked for 7"),
        (worker(exhausted=True), "no more tasks"),
        (worker(running=False), "is not running"),
    ):
        with pytest.raises(RolloutFailed, match=why):
            sick.check(60)


def test_a_used_run_is_refused(tiny: Any, tmp_path: Path) -> None:
    """Versions begin anew with each training, so a directory takes one."""
    (tmp_path / "worker-0.sqlite").touch()
    with pytest.raises(InvalidInput, match="already contains a run"):
        RolloutProcesses.for_vllm(
            cpu.config(tmp_path),
            SPEC,
            tasks(5),
            model="tiny",
            tokenizer=tiny.tokenizer,
            store=tmp_path,
        )


def test_what_cannot_be_sent_is_refused() -> None:
    """A lambda can't reach another process."""
    with pytest.raises(InvalidInput, match="module-level functions"):
        RolloutProcesses(lambda *, versions, shard: versions)  # type: ignore[arg-type, return-value]


def test_it_starts_once() -> None:
    """Not running is unhealthy, stopping that is fine, and there is no second start."""
    process = RolloutProcesses(broken)
    with pytest.raises(RolloutFailed, match="is not running"):
        process.check_health(STALE)
    process.start()
    with pytest.raises(RolloutFailed, match="once"):
        process.start()
    process.stop()
    process.stop()
    other = RolloutProcesses(broken)
    other.stop()
    with pytest.raises(RolloutFailed, match="once"):
        other.start()
