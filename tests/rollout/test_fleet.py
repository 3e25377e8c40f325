"""The fleet: one run over processes that are killed, stopped and replaced."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kills import containers
from tests.rollout.fleet import (
    SPEC,
    TURNS,
    CancelledInside,
    Streamed,
    Unsendable,
    broken,
    contents,
    held,
    held_boxes,
    policy,
    rationed,
    scores,
    tasks,
)
from trajgym.envs import EnvSpec
from trajgym.rollout import RunIncomplete, collect
from trajgym.rollout.fleet import Fleet, FleetFailed, FleetLimits, Shard, collect_in_processes
from trajgym.rollout.fleet._launcher import ProcessLauncher
from trajgym.rollout.rules import Enough
from trajgym.trajectory import InvalidInput, Run, Store, StoreLocked, Task

if TYPE_CHECKING:
    from trajgym.rollout import Progress

ROOT = Path(__file__).parents[2]
DOCKER = pytest.param("docker", marks=pytest.mark.docker)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def waiting(folder: Path) -> set[int]:
    """Return the processes whose sessions have waited for the file."""
    return {int(path.name.split("-")[1]) for path in folder.glob("waits-*")}


async def until(condition: Any, seconds: float = 240.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def contents_of(folder: Path, pattern: str) -> dict[str, list[str]]:
    """Return the lines of files by name."""
    return {path.name: path.read_text().splitlines() for path in folder.glob(pattern)}


def statuses(out: Path) -> Counter[str]:
    with Run(out) as run:
        return Counter(str(s.attempts[0].status) for s in run.summaries())


async def test_it_collects_what_one_process_collects(tmp_path: Path) -> None:
    """The same sessions with the same seeds, texts and scores, each group once, in one run."""
    await collect(SPEC, tasks(6), policy(), tmp_path / "one", samples=2)
    async with Fleet(SPEC, tasks(6), policy, tmp_path / "two", samples=2) as fleet:
        assert isinstance(fleet.pids, list)
        sealed = [group async for group in fleet]
        pids = fleet.pids
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert sorted(one.group.task for one in sealed) == [f"t{i}" for i in range(6)]
    assert all([t.record.sample for t in one.sessions] == [0, 1] for one in sealed)
    assert pids == []
    with Run(tmp_path / "two") as run, Run(tmp_path / "one") as one:
        assert len(run.files) == 3
        assert [g.id for g in run.groups()] != []
        assert {g.id for g in run.groups()} == {g.id for g in one.groups()}
        assert all(g.sealed for g in run.groups())
        assert list(run.tasks()) == list(one.tasks())


@pytest.mark.parametrize("launcher", [ProcessLauncher, Streamed])
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 3)])
async def test_a_run_is_continued_with_another_number(
    first: int, then: int, launcher: type[ProcessLauncher], tmp_path: Path
) -> None:
    """Finished sessions are found in whatever files they are; only what is missing is run."""

    async def some(processes: int, n: int, samples: int) -> int:
        if processes == 1:
            done = await collect(SPEC, tasks(n), policy(), tmp_path, samples=samples)
        else:
            done = await collect_in_processes(
                SPEC,
                tasks(n),
                policy,
                tmp_path,
                samples=samples,
                processes=processes,
                launcher=launcher(),
                max_staleness=3,  # for which the sessions of earlier processes are read again
            )
        return done.sessions

    assert await some(first, 4, 1) == 4
    assert await some(then, 5, 2) == 6
    assert await some(first, 5, 2) == 0
    assert await some(then, 5, 2) == 0
    assert len(contents(tmp_path)) == 10
    with Run(tmp_path) as run:
        groups = list(run.groups())
    assert len(groups) == 5
    assert all(g.sealed and len(g.counted) == 2 for g in groups)


@pytest.mark.parametrize("in_order", [False, True])
async def test_groups_that_had_enough_are_not_run_again(in_order: bool, tmp_path: Path) -> None:
    """A fleet ends at once when the samples that its groups lack are not needed."""
    options: dict[str, Any] = {
        "samples": 8,
        "concurrency": 4,
        "enough": Enough(sessions=2, in_order=in_order),
    }
    first = await collect_in_processes(SPEC, tasks(2), policy, tmp_path, **options)
    assert first.groups == 2
    again = await collect_in_processes(SPEC, tasks(2), policy, tmp_path, **options)
    assert (again.sessions, again.groups) == (0, 0)


@pytest.mark.parametrize("launcher", [ProcessLauncher, Streamed])
async def test_killed_processes_lose_nothing_and_count_nothing_twice(
    launcher: type[ProcessLauncher], tmp_path: Path
) -> None:
    """Processes are killed at random moments; events, totals and contents add up exactly."""
    await collect(SPEC, tasks(30), policy(), tmp_path / "whole", samples=2)
    chance = random.Random(5)
    seen: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    out = tmp_path / "killed"
    fleets: list[Fleet] = []
    # No process makes more turns than its ration before the last kill: none can end before that.
    # A kill follows some turns after the one before was noticed; the replacement makes them.
    ration, free = 40, tmp_path / "free"
    kill_after = [chance.randint(5, ration) for _ in range(3)]
    since = 0

    def note(event: Progress) -> None:
        nonlocal since
        seen[event.kind] += 1
        if event.kind == "turn":
            turns[event.session] += 1
            since += fleets[0].deaths == 3 - len(kill_after)
            if kill_after and since >= kill_after[0]:
                del kill_after[0]
                since = 0
                os.kill(chance.choice(fleets[0].pids), signal.SIGKILL)
                if not kill_after:
                    free.touch()

    report = await collect_in_processes(
        SPEC,
        tasks(30),
        partial(rationed, ration, free),
        out,
        samples=2,
        concurrency=8,
        processes=2,
        on_progress=note,
        on_start=fleets.append,
        launcher=launcher(),
    )
    assert kill_after == []
    assert fleets[0].deaths == 3
    assert contents(out) == contents(tmp_path / "whole")
    assert report.statuses == statuses(out)
    assert report.statuses["completed"] == 60
    assert 0 < report.statuses["interrupted"] <= 3 * 8
    assert set(report.statuses) == {"completed", "interrupted"}
    assert report.groups == seen["sealed"] == 30
    with Run(out) as run:
        stored = {s.record.id: s.turns for s in run.summaries() if s.turns}
        groups = list(run.groups())
    assert stored == turns
    assert len(groups) == 30
    assert all(g.sealed and len(g.counted) == 2 for g in groups)
    left = Counter(m.left for g in groups for m in g.members)
    assert left == {"": 60, "interrupted": report.statuses["interrupted"]}


@pytest.mark.parametrize("launcher", ["ProcessLauncher", "Streamed"])
async def test_a_killed_parent_leaves_no_process_and_a_whole_run(
    launcher: str, tmp_path: Path
) -> None:
    """Each parent is killed at a random moment; the processes end, and another number goes on.

    With streamed files, the parent is also the process that receives and writes their records.
    """
    await collect(SPEC, tasks(12), policy(), tmp_path / "whole", samples=2)
    out, chance = tmp_path / "killed", random.Random(3)
    acknowledged: Counter[str] = Counter()
    for processes in (2, 3, 1):
        wanted = chance.randint(5, 30)
        command = [sys.executable, "-m", "tests.rollout.fleet", str(out), str(processes), "12"]
        ration = str(wanted // processes + 2)  # it does not end before it is killed
        with subprocess.Popen(
            [*command, ration, launcher], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            lines = [parent.stdout.readline() for _ in range(wanted)]
            if processes > 1:
                parent.kill()
            lines += parent.stdout.readlines()
        acknowledged.update(line.strip() for line in lines if line.endswith("\n"))
    assert acknowledged.pop("complete") == 1
    assert contents(out) == contents(tmp_path / "whole")
    with Run(out) as run:
        stored = {s.record.id: s.turns for s in run.summaries()}
    assert all(stored[session] >= turns for session, turns in acknowledged.items())
    assert set(statuses(out)) <= {"completed", "cancelled", "interrupted"}


def boxes_of(kind: str, mark: str) -> list[str]:
    """Return the sandboxes that there are of a kind: containers with a mark, or folders."""
    if kind == "docker":
        return containers(mark)
    return [path.name for path in Path(os.environ["TRAJGYM_SANDBOX_DIR"]).glob("*-sandbox-*")]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the containers of this test carry; its embedded sandboxes have a folder of their own."""
    name = uuid.uuid4().hex
    monkeypatch.setenv("TRAJGYM_TEST_MARK", name)
    monkeypatch.setenv("TRAJGYM_SANDBOX_DIR", str(tmp_path / "sandboxes"))
    return name


@pytest.mark.parametrize("launcher", [ProcessLauncher, Streamed])
@pytest.mark.parametrize("kind", [DOCKER, "embedded"])
async def test_a_killed_process_that_holds_sandboxes_leaves_none(
    kind: str, launcher: type[ProcessLauncher], tmp_path: Path, mark: str
) -> None:
    """Its sandboxes are removed while the others work; its sessions run again, totals add up."""
    spec = EnvSpec(id="tests.boxes:Box", config={"sandbox": kind})
    todo = [Task(id=f"t{i}") for i in range(4)]
    events: list[Progress] = []
    async with Fleet(
        spec,
        todo,
        partial(held_boxes, tmp_path),
        tmp_path / "run",
        samples=2,
        concurrency=4,
        launcher=launcher(),
        on_progress=events.append,
    ) as fleet:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 4)
        before = set(boxes_of(kind, mark))
        assert len(before) == 4
        os.kill(fleet.pids[0], signal.SIGKILL)
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 6)  # the new one has two again
        assert len(before & set(boxes_of(kind, mark))) == 2  # those of the other process
        (tmp_path / "go").touch()
        sealed = [one async for one in fleet]
    assert fleet.deaths == 1
    assert boxes_of(kind, mark) == []
    assert statuses(tmp_path / "run") == {"completed": 8, "interrupted": 2}
    assert sorted(len(one.group.counted) for one in sealed) == [2, 2, 2, 2]
    assert all(tree.attempts[0].outcome for one in sealed for tree in one.sessions)
    with Run(tmp_path / "run") as run:
        stored = {s.record.id: s.turns for s in run.summaries()}
    assert stored == Counter(one.session for one in events if one.kind == "turn")


BOXES = """
import asyncio, sys
from functools import partial
from pathlib import Path
from tests.rollout.fleet import Streamed, held_boxes
from trajgym.envs import EnvSpec
from trajgym.rollout.fleet import collect_in_processes
from trajgym.rollout.fleet._launcher import ProcessLauncher
from trajgym.trajectory import Task

out, folder, kind, launcher = sys.argv[1:]
todo = [Task(id=f"t{i}") for i in range(4)]
spec = EnvSpec(id="tests.boxes:Box", config={"sandbox": kind})
chosen = Streamed() if launcher == "Streamed" else ProcessLauncher()
make = partial(held_boxes, Path(folder))
work = collect_in_processes(spec, todo, make, out, samples=2, concurrency=4, launcher=chosen)
asyncio.run(work)
print("complete", flush=True)
"""


@pytest.mark.parametrize("launcher", ["ProcessLauncher", "Streamed"])
@pytest.mark.parametrize("kind", [DOCKER, "embedded"])
async def test_a_killed_parent_leaves_no_sandbox(
    kind: str, launcher: str, tmp_path: Path, mark: str
) -> None:
    """Its processes remove the sandboxes that they hold; another call runs what was cut."""

    def start() -> subprocess.Popen[str]:
        arguments = [str(tmp_path / "run"), str(tmp_path), kind, launcher]
        return subprocess.Popen(
            [sys.executable, "-c", BOXES, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    with start() as first:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 4)
        assert len(boxes_of(kind, mark)) == 4
        first.kill()
    pids = waiting(tmp_path)
    await until(lambda: not any(map(alive, pids)))
    assert boxes_of(kind, mark) == []
    (tmp_path / "go").touch()
    with start() as second:
        said, _ = await asyncio.to_thread(second.communicate, timeout=240)
    assert said == "complete\n"
    found = statuses(tmp_path / "run")
    assert found["completed"] == 8
    assert found["cancelled"] + found["interrupted"] == 4
    assert boxes_of(kind, mark) == []


async def test_a_stopped_process_is_replaced(tmp_path: Path) -> None:
    """A process that does not run any more does not hang the run, nor pause, version and stop."""
    limits = FleetLimits(answer=20)  # the other process answers in time on any machine
    make = partial(held, tmp_path)
    async with Fleet(
        SPEC, tasks(4), make, tmp_path / "run", samples=2, concurrency=4, limits=limits
    ) as fleet:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 4)
        victim = fleet.pids[0]
        os.kill(victim, signal.SIGSTOP)
        async with asyncio.timeout(240):
            await fleet.set_version(3)
            await fleet.pause()
        await until(lambda: not alive(victim))
        await fleet.resume()
        (tmp_path / "go").touch()
        sealed = [one async for one in fleet]
    assert len(sealed) == 4
    assert fleet.deaths == 1
    assert statuses(tmp_path / "run") == {"completed": 8, "interrupted": 2}


async def test_commands_reach_every_process(tmp_path: Path) -> None:
    """While it is paused no turn begins; stop lets the sessions in progress finish, and no more."""
    make = partial(held, tmp_path)
    events: list[Progress] = []
    async with Fleet(
        SPEC, tasks(20), make, tmp_path / "run", concurrency=4, on_progress=events.append
    ) as fleet:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 4)
        await fleet.pause()
        (tmp_path / "go").touch()  # ends the calls in progress; the next ones are not begun
        await until(lambda: sum(e.kind == "turn" for e in events) == 8)
        fleet.stop()
        await fleet.set_version(1)
        assert sum(e.kind == "turn" for e in events) == 8
        await fleet.resume()
        await fleet.drain()
        with pytest.raises(InvalidInput, match="back from 1 to 0"):
            await fleet.set_version(0)
    assert statuses(tmp_path / "run") == {"completed": 4}
    assert sum(e.kind == "turn" for e in events) == 4 * TURNS
    done = await collect(SPEC, tasks(20), held(tmp_path), tmp_path / "run")
    assert done.sessions == 16


async def test_leaving_the_fleet_closes_its_sessions(tmp_path: Path) -> None:
    """They are recorded as cancelled, and no process is left."""
    make = partial(held, tmp_path)
    async with Fleet(SPEC, tasks(8), make, tmp_path / "run", concurrency=4) as fleet:
        await until(lambda: len(list(tmp_path.glob("waits-*"))) == 4)
        pids = fleet.pids
        assert len(pids) == 2
        with pytest.raises(StoreLocked):
            await collect(SPEC, tasks(8), held(tmp_path), tmp_path / "run")
    assert not any(map(alive, pids))
    assert statuses(tmp_path / "run") == {"cancelled": 4}


@pytest.mark.parametrize("launcher", [ProcessLauncher, Streamed])
async def test_groups_are_handled_where_they_were_sealed(
    launcher: type[ProcessLauncher], tmp_path: Path
) -> None:
    """Each result arrives once, also of a group whose process died between sealing and handling."""
    seen: Counter[str] = Counter()
    fleet = Fleet(
        SPEC,
        tasks(8),
        policy,
        tmp_path / "run",
        samples=2,
        on_progress=lambda event: seen.update([event.kind]),
        make_handler=partial(scores, tmp_path, "t3"),
        environ={"SCORES": "yes", "HOME": None},
        launcher=launcher(),
    )
    async with fleet:
        handled = [one async for one in fleet.handled()]
    assert fleet.deaths == 1
    assert sorted(one.group.task for one in handled) == [f"t{i}" for i in range(8)]
    found = contents(tmp_path / "run")
    for one in handled:
        assert one.result == [found[one.group.task, sample][1] for sample in range(2)]
    assert statuses(tmp_path / "run")["completed"] == 16  # none was run again that was finished
    assert seen["sealed"] == 8
    notes = contents_of(tmp_path, "handled-*")
    assert len(notes["handled-t3"]) == 2
    assert {line for lines in notes.values() for line in lines} <= {"0 yes", "1 yes"}
    assert contents_of(tmp_path, "closed-*")
    assert Shard.current() == Shard(0, 1)


async def test_a_handler_that_refuses_ends_the_fleet(tmp_path: Path) -> None:
    """Its error is raised as it is; the sessions stay."""
    todo = [Task(id="refused")]
    with pytest.raises(InvalidInput, match="this group is refused"):
        async with Fleet(
            SPEC, todo, policy, tmp_path / "run", make_handler=partial(scores, tmp_path)
        ) as fleet:
            await fleet.drain()
    assert statuses(tmp_path / "run") == {"completed": 1}


@pytest.mark.parametrize("launcher", [ProcessLauncher, Streamed])
async def test_a_result_that_can_not_be_sent_is_named(
    launcher: type[ProcessLauncher], tmp_path: Path
) -> None:
    """It ends the fleet with the reason; no process is taken for dead, no task for deadly."""
    fleet = Fleet(
        SPEC, tasks(1), policy, tmp_path, make_handler=Unsendable, launcher=launcher(), processes=2
    )
    with pytest.raises(InvalidInput, match="handler returned list, which can't be pickled"):
        async with fleet:
            await fleet.drain()
    assert fleet.deaths == 0
    assert statuses(tmp_path) == {"completed": 1}


async def test_a_cancellation_inside_a_process_is_its_failure(tmp_path: Path) -> None:
    """Nobody cancelled the process: what its code raised is reported, not that it has ended."""
    fleet = Fleet(SPEC, tasks(1), CancelledInside, tmp_path, environ={"IN_PROCESS": "yes"})
    with pytest.raises(FleetFailed, match="the pool of connections"):
        async with fleet:
            await fleet.drain()


async def test_a_fleet_that_failed_unnoticed_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller that leaves a fleet without reading on finds in the log that it had failed."""
    fleet = Fleet(SPEC, tasks(1), CancelledInside, tmp_path, environ={"IN_PROCESS": "yes"})
    async with fleet:
        await until(lambda: fleet._supervisor.started and fleet._supervisor.task.done())
    assert "the pool of connections" in caplog.text


async def test_a_task_that_ends_its_process_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are finished, and so are its neighbours in the process that it ended."""
    todo = [*tasks(3), *(task for task in tasks(5, deadly=True) if task.id == "t4"), *tasks(6)[5:]]
    with pytest.raises(
        RunIncomplete, match=r"1 groups.*'t4' ended its process [34] times \(it exit"
    ):
        await collect_in_processes(SPEC, todo, policy, tmp_path, limits=FleetLimits(deaths=2))
    assert {task for task, _ in contents(tmp_path)} == {"t0", "t1", "t2", "t5"}
    assert "task 't4' was running in two processes that ended" in caplog.text


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_replacement_that_can_not_begin_is_tried_again(
    failures: int, tmp_path: Path
) -> None:
    """Once a process has begun, what prevents another need not last; if it does, it is raised."""
    spec = EnvSpec(id="tests.rollout.fleet:Fragile", config={"folder": str(tmp_path)})
    make = partial(held, tmp_path)
    limits = FleetLimits(starts=3)
    out = tmp_path / "run"
    fleet = Fleet(spec, tasks(2), make, out, concurrency=2, processes=1, limits=limits)

    async def run() -> None:
        async with fleet:
            drained = asyncio.create_task(fleet.drain())
            await until(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
            (tmp_path / "failures").write_text("the engine is busy\n" * failures)
            (victim,) = fleet.pids
            os.kill(victim, signal.SIGKILL)
            await until(lambda: not alive(victim))
            (tmp_path / "go").touch()
            await drained

    if failures < limits.starts:
        await run()
        assert fleet.deaths == 1 + failures
        assert len(contents(out)) == 2
    else:
        with pytest.raises(InvalidInput, match="the engine is busy"):
            await run()


async def test_what_can_not_be_made_is_refused(tmp_path: Path) -> None:
    """Errors of the policy's function are raised as they are, in whichever process they arise."""
    with pytest.raises(InvalidInput, match="module-level"):
        Fleet(SPEC, tasks(1), lambda: policy(), tmp_path)
    with pytest.raises(InvalidInput, match="no policy today"):
        await collect_in_processes(SPEC, tasks(3), broken, tmp_path)
    with pytest.raises(InvalidInput, match="must be at least 1"):
        Fleet(SPEC, tasks(1), policy, tmp_path, processes=0)
    with pytest.raises(InvalidInput, match="answer is 0"):
        FleetLimits(answer=0)
    with pytest.raises(FleetFailed, match=r"2 processes in a row.*did not start within 0\.01 s"):
        await collect_in_processes(
            SPEC, tasks(3), policy, tmp_path, limits=FleetLimits(start=0.01, starts=2)
        )
    async with Store(tmp_path) as store:
        with store.read_run() as run:
            assert list(run.summaries()) == []
