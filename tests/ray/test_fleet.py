"""The fleet on Ray: nodes that join, are drained and die, and actors that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray

from tests import boxes
from tests.kills import containers
from tests.rollout.fleet import SPEC, TURNS, Steps, contents, held, policy, tasks
from tests.rollout.test_fleet import alive, statuses, until
from trajgym.envs import EnvSpec
from trajgym.envs.sandbox import close_shared_providers, shared_provider
from trajgym.rollout import collect
from trajgym.rollout.fleet import Fleet, FleetFailed, FleetLimits, collect_in_processes
from trajgym.rollout.fleet.ray import RayLauncher
from trajgym.trajectory import InvalidInput, Run, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.ray.cluster import Nodes
    from trajgym.rollout import Progress

ROOT = Path(__file__).parents[2]
DOCKER = pytest.param(
    "docker",
    marks=[
        pytest.mark.docker,
        pytest.mark.skipif(
            os.environ.get("TRAJGYM_TEST_DOCKER") == "0", reason="TRAJGYM_TEST_DOCKER=0"
        ),
    ],
)


def waiting(folder: Path) -> set[int]:
    """Return the ids of the processes whose sessions waited; see `tests.rollout.fleet.Held`."""
    return {int(path.name.split("-")[1]) for path in folder.glob("waits-*")}


async def test_it_collects_what_one_process_collects(nodes: Nodes, tmp_path: Path) -> None:
    """The same sessions with the same seeds, texts and scores, from two nodes, in one run."""
    nodes.add(2)
    nodes.add(2)
    await collect(SPEC, tasks(6), policy(), tmp_path / "one", samples=2)
    async with Fleet(
        SPEC,
        tasks(6),
        policy,
        tmp_path / "two",
        samples=2,
        concurrency=4,
        launcher=RayLauncher(),
    ) as fleet:
        await fleet.set_version(3)
        sealed = [group async for group in fleet]
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert sorted(one.group.task for one in sealed) == [f"t{i}" for i in range(6)]
    assert fleet.deaths == 0
    with Run(tmp_path / "two") as run:
        assert {path.name for path in run.files} == {
            "store.sqlite",
            "worker-0.sqlite",
            "worker-1.sqlite",
        }
        assert all(group.sealed for group in run.groups())
    again = await collect(SPEC, tasks(6), policy(), tmp_path / "two", samples=2)
    assert again.sessions == 0


@pytest.mark.timeout(900)
async def test_killed_nodes_and_actors_lose_nothing_and_count_nothing_twice(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Ten are killed at random in 2,000 sessions; events, totals and contents add up exactly."""
    groups, samples, kills = 500, 4, 10
    for _ in range(2):
        nodes.add(4)
    chance = random.Random(11)
    seen: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    out = tmp_path / "run"
    fleets: list[Fleet] = []

    def note(event: Progress) -> None:
        seen[event.kind] += 1
        if event.kind == "turn":
            turns[event.session] += 1

    async def kill() -> None:
        everything = groups * samples * TURNS
        for number in range(kills):
            moment = everything * (number + chance.random()) / (kills + 1)
            await until(lambda: turns.total() > moment and fleets[0].pids, 600)  # noqa: B023
            what = "node" if number % 2 else "actor"
            if what == "node":
                await asyncio.to_thread(nodes.kill, chance.choice(nodes.ids))
                nodes.add(4)
            else:
                # Those of a killed node are known until the fleet has noticed.
                await until(lambda: any(pid and alive(pid) for pid in fleets[0].pids), 600)
                pid = chance.choice([pid for pid in fleets[0].pids if pid and alive(pid)])
                os.kill(pid, signal.SIGKILL)
                await until(lambda: not alive(pid))  # noqa: B023
            killed[what] += 1

    killing = asyncio.create_task(kill())
    report = await collect_in_processes(
        SPEC,
        tasks(groups),
        policy,
        out,
        samples=samples,
        concurrency=8,
        processes=2,
        on_progress=note,
        on_start=fleets.append,
        launcher=RayLauncher(),
    )
    await killing
    assert killed == {"node": 5, "actor": 5}
    assert fleets[0].deaths >= 5
    scored = contents(out)  # which refuses a sample that was scored twice
    assert set(scored) == {(f"t{i}", sample) for i in range(groups) for sample in range(samples)}
    assert report.statuses == statuses(out)
    assert report.statuses["completed"] == groups * samples
    assert set(report.statuses) <= {"completed", "interrupted"}
    assert report.groups == seen["sealed"] == groups
    with Run(out) as run:
        stored = {s.record.id: s.turns for s in run.summaries() if s.turns}
        kept = list(run.groups())
    assert stored == turns
    assert len(kept) == groups
    assert all(g.sealed and len(g.counted) == samples for g in kept)
    left = Counter(member.left for group in kept for member in group.members)
    assert left == {"": groups * samples, "interrupted": report.statuses["interrupted"]}


async def test_nodes_that_join_later_get_processes(nodes: Nodes, tmp_path: Path) -> None:
    """Without room the fleet waits; a process starts where most room is, and the rest follow."""
    make = partial(held, tmp_path)
    launcher = RayLauncher(probe=False)  # or it would begin on the head, as nothing else is there
    async with Fleet(
        SPEC,
        tasks(16),
        make,
        tmp_path / "run",
        concurrency=8,
        processes=2,
        launcher=launcher,
    ) as fleet:
        small = nodes.add(2)
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 2)  # less than its share
        assert len(fleet.pids) == 1
        large = nodes.add(6)
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 6)
        rooms = {worker.room.node: worker.room.sessions for worker in fleet._pool.alive}
        assert rooms == {small: 2, large: 4}
        (tmp_path / "go").touch()
        assert len([group async for group in fleet]) == 16
    assert statuses(tmp_path / "run") == {"completed": 16}


async def test_a_node_that_is_drained_gets_no_more_tasks(nodes: Nodes, tmp_path: Path) -> None:
    """Its sessions in progress end there; the other node runs the rest, and nothing dies."""
    first = nodes.add(2)
    async with Fleet(
        SPEC,
        tasks(12),
        partial(held, tmp_path),
        tmp_path / "run",
        concurrency=2,
        processes=1,
        launcher=RayLauncher(),
    ) as fleet:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
        (worker,) = fleet._pool.alive
        nodes.add(2)
        await asyncio.to_thread(_drain, nodes.address, first)
        await asyncio.wait_for(worker.retiring.wait(), 240)
        (tmp_path / "go").touch()
        await fleet.drain()
    assert fleet.deaths == 0
    assert statuses(tmp_path / "run") == {"completed": 12}
    assert len(waiting(tmp_path)) == 2


def _drain(address: str, node: str) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    accepted, why = GcsClient(address=address).drain_node(node, reason, "a test", 2**62)
    assert accepted, why


@pytest.mark.parametrize("kind", [DOCKER, "embedded"])
async def test_no_sandbox_is_left_by_a_killed_actor(
    kind: str, nodes: Nodes, tmp_path: Path
) -> None:
    """Each node's sandboxes are removed there, though the actor is replaced on another one."""
    for _ in range(2):
        nodes.add(2)
    seen: Counter[str] = Counter()
    fleets: list[Fleet] = []

    killed: list[int] = []

    def note(event: Progress) -> None:
        seen[event.kind] += 1
        if event.kind != "turn" or len(killed) == 2 or seen["turn"] < (5, 15)[len(killed)]:
            return
        # The fleet may not have noticed the first death yet, and who has no work left ends anyway.
        working = [worker.pid for worker in fleets[0]._pool.alive if worker.jobs and worker.pid]
        if left := set(working) - set(killed):
            killed.append(max(left))
            os.kill(killed[-1], signal.SIGKILL)

    todo = [Task(id=f"t{i}") for i in range(8)]
    report = await collect_in_processes(
        EnvSpec(id="tests.boxes:Box", config={"sandbox": kind}),
        todo,
        boxes.policy,
        tmp_path,
        samples=1,
        concurrency=4,
        processes=2,
        on_progress=note,
        on_start=fleets.append,
        launcher=RayLauncher(),
    )
    assert fleets[0].deaths == 2
    assert report.statuses["completed"] == 8
    mark = os.environ["TRAJGYM_TEST_MARK"]
    if kind == "docker":
        assert containers(mark) == []
    provider = await shared_provider(kind)
    assert await provider.reap() == 0
    await close_shared_providers()


class Noted(Steps):
    """Writes down on which nodes its runs are opened, which is what removes old sandboxes."""

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        name = ray.get_runtime_context().get_node_id()
        (Path(config["folder"]) / f"{name}-{os.getpid()}").touch()

    def __init__(self, folder: str) -> None:
        del folder


async def test_what_a_dead_actor_left_is_removed_on_its_node(nodes: Nodes, tmp_path: Path) -> None:
    """Its node opens a run again, though the next actor is started where more room is."""
    first = nodes.add(2)
    folder = tmp_path / "opened"
    folder.mkdir()
    spec = EnvSpec(id="tests.ray.test_fleet:Noted", config={"folder": str(folder)})
    async with Fleet(
        spec,
        tasks(4),
        partial(held, tmp_path),
        tmp_path / "run",
        concurrency=2,
        processes=1,
        launcher=RayLauncher(probe=False),
    ) as fleet:
        await until(lambda: len(waiting(tmp_path)) == 1)
        second = nodes.add(4)
        os.kill(fleet.pids[0], signal.SIGKILL)
        await until(lambda: len(waiting(tmp_path)) == 2)
        (tmp_path / "go").touch()
        await fleet.drain()
    assert fleet.deaths == 1
    opened = [path.name.split("-")[0] for path in sorted(folder.iterdir())]
    assert sorted(opened) == sorted([first, first, second])


DRIVER = """
import asyncio, sys
from functools import partial
from pathlib import Path
from tests.rollout.fleet import SPEC, held, tasks
from trajgym.rollout.fleet import collect_in_processes
from trajgym.rollout.fleet.ray import RayLauncher

make = partial(held, Path(sys.argv[2]))
launcher = RayLauncher(sys.argv[3], lease=float(sys.argv[4]))
asyncio.run(
    collect_in_processes(SPEC, tasks(8), make, sys.argv[1], concurrency=4, launcher=launcher)
)
print("complete", flush=True)
"""


async def test_a_killed_fleet_leaves_no_actor_and_a_whole_run(nodes: Nodes, tmp_path: Path) -> None:
    """The actors notice, close their sessions and exit; another fleet continues the run."""
    nodes.add(4)
    out = tmp_path / "run"

    def driver(lease: float) -> subprocess.Popen[str]:
        arguments = [str(out), str(tmp_path), nodes.address, str(lease)]
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )

    # A lease that this process renews also where it gets no time for some seconds.
    with driver(20.0) as first:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 4)
        first.kill()
    pids = waiting(tmp_path)
    await until(lambda: not any(map(alive, pids)))
    assert statuses(out) == {"interrupted": 4}
    with Run(out) as run:
        assert all(summary.turns == 1 for summary in run.summaries())
    (tmp_path / "go").touch()
    with driver(60.0) as second:
        said, _ = await asyncio.to_thread(second.communicate, timeout=240)
    assert said == "complete\n"
    assert statuses(out) == {"interrupted": 4, "completed": 8}


async def test_it_runs_inside_a_process_of_a_trainer_on_ray(nodes: Nodes, tmp_path: Path) -> None:
    """In an actor that reserved the head's processors, it uses the cluster that is there."""
    nodes.add(2)
    trainer = ray.remote(Trainer).options(num_cpus=2).remote()
    found = await asyncio.to_thread(ray.get, trainer.collect.remote(str(tmp_path)), timeout=240)
    ray.kill(trainer)
    assert found == {"completed": 4}
    assert statuses(tmp_path) == {"completed": 4}


class Trainer:
    """Stands for the main process of a trainer that runs on Ray."""

    def collect(self, out: str) -> Counter[str]:
        """Collect a few sessions."""
        work = collect_in_processes(
            SPEC, tasks(4), policy, out, processes=1, launcher=RayLauncher()
        )
        return asyncio.run(work).statuses


async def test_what_can_not_work_is_named(nodes: Nodes, tmp_path: Path) -> None:
    """No room within the deadline, code that nodes can't import, and arguments out of range."""
    limits = FleetLimits(room=0.5)
    launcher = RayLauncher(probe=False)
    with pytest.raises(FleetFailed, match=r"no room.* within 0\.5 s: room for sandboxes by node"):
        await collect_in_processes(
            SPEC, tasks(1), policy, tmp_path / "a", launcher=launcher, limits=limits
        )
    with pytest.raises(InvalidInput, match="lease"):
        RayLauncher(lease=0)


def test_without_a_declared_capacity_nodes_are_probed() -> None:
    """Processors and free memory of the node that is asked bound the number of its sandboxes."""
    from trajgym.rollout.fleet.ray._actor import probe

    capacity = probe()
    assert capacity.by_cpu == 4 * len(os.sched_getaffinity(0))
    assert capacity.by_memory > 0
