"""An environment and policies for fleets: importable by name from other processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tests import boxes
from trajgym.envs import Budgets, Env, EnvSpec, Reply, ToolResult, tool
from trajgym.rollout import Policy, PolicyRequest, ScriptedPolicy, call, collect
from trajgym.rollout.fleet import Shard, collect_in_processes
from trajgym.rollout.fleet._launcher import ProcessLauncher
from trajgym.trajectory import InvalidInput, Run, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.rollout import Progress, SealedGroup
    from trajgym.trajectory import Store

__all__ = [
    "SPEC",
    "CancelledInside",
    "Steps",
    "Streamed",
    "Unsendable",
    "broken",
    "contents",
    "held",
    "held_boxes",
    "policy",
    "rationed",
    "scores",
    "tasks",
]

TURNS = 5


class Steps(Env):
    """Each session takes a few steps, some of which take a moment."""

    budgets: ClassVar[Budgets] = Budgets(turns=TURNS + 1, seconds=3600)

    def reset(self, task: Task, seed: int | None) -> str:
        self.task, self.n = task, seed or 0
        return f"Go on, {task.id}."

    @tool
    async def step(self, n: int) -> ToolResult:
        """Take a step.

        Args:
            n: how many were taken.
        """
        if n == 2 and self.task.data.get("deadly"):
            os._exit(7)
        await asyncio.sleep(self.task.data.get("seconds", 0.002) * (n + self.n % 3))
        return ToolResult(content=f"{self.n} {n}", done=n == TURNS - 1)

    def verify(self) -> float:
        return float(self.n % 2)


SPEC = EnvSpec(id="tests.rollout.fleet:Steps")


class Fragile(Steps):
    """Can't be opened as often as the file ``failures`` in a folder has lines."""

    def __init__(self, folder: str) -> None:
        del folder

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        if reason := next_line(Path(config["folder"], "failures")):
            raise InvalidInput(reason)


def next_line(file: Path) -> str:
    """Remove the first line of a file, and return it; empty if there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    if lines:
        file.write_text("".join(f"{line}\n" for line in lines[1:]))
    return lines[0] if lines else ""


def tasks(n: int, **data: Any) -> list[Task]:
    """Return some tasks with the same data."""
    return [Task(id=f"t{i}", data=data) for i in range(n)]


def policy() -> Policy:
    """Make a policy that follows the steps."""
    return ScriptedPolicy(
        lambda request: call("step", n=sum(m["role"] == "assistant" for m in request.messages))
    )


class Streamed(ProcessLauncher):
    """Starts processes whose files the fleet writes, as for those on other machines."""

    streamed = True


class Held(Policy):
    """Waits in the second turn of a session until a file is there, and says that it waits."""

    name = "test:held"

    def __init__(self, folder: Path, inner: Policy) -> None:
        self.folder = folder
        self.inner = inner

    async def sample(self, request: PolicyRequest) -> Reply:
        if request.turn == 1:
            (self.folder / f"waits-{os.getpid()}-{request.session}").touch()
            while not (self.folder / "go").exists():
                await asyncio.sleep(0.01)
        return await self.inner.sample(request)


class CancelledInside(Policy):
    """Fails to open in a process of a fleet: something that it awaits was cancelled."""

    name = "test:cancelled"

    async def __aenter__(self) -> Self:
        if "IN_PROCESS" in os.environ:
            raise asyncio.CancelledError("the pool of connections")
        return self

    async def sample(self, request: PolicyRequest) -> Reply:
        raise NotImplementedError


class Unsendable:
    """A handler of groups whose results can't be pickled."""

    async def __call__(self, sealed: SealedGroup, store: Store) -> Any:
        return [lambda: sealed]

    async def close(self) -> None:
        return


class Rationed(Policy):
    """Answers so many calls, and no more until a file is there: a slow test is not outrun.

    Each process has its own ration.
    """

    def __init__(self, inner: Policy, ration: int, file: Path) -> None:
        self.name = inner.name  # its turns are those of the other policy
        self.inner, self.left, self.file = inner, ration, file

    async def sample(self, request: PolicyRequest) -> Reply:
        while not self.left and not self.file.exists():
            await asyncio.sleep(0.01)
        self.left -= bool(self.left)
        return await self.inner.sample(request)


def rationed(ration: int, file: Path) -> Policy:
    """Make a policy that waits for a file after some calls."""
    return Rationed(policy(), ration, file)


def held(folder: Path) -> Policy:
    """Make a policy that waits for a file."""
    return Held(folder, policy())


def held_boxes(folder: Path) -> Policy:
    """Make a policy for boxes that waits for a file."""
    return Held(folder, boxes.policy())


def broken() -> Policy:
    """Make nothing, but only where it matters."""
    if "MainProcess" not in sys.modules["multiprocessing"].current_process().name:
        raise InvalidInput("no policy today")
    return policy()


class Scores:
    """Handles a group by returning its scores; the first group's process dies before it can."""

    def __init__(self, folder: Path, deadly: str) -> None:
        self.folder, self.deadly = folder, deadly

    async def __call__(self, sealed: SealedGroup, store: Store) -> list[float]:
        name = sealed.group.task
        with (self.folder / f"handled-{name}").open("a") as file:
            file.write(f"{Shard.current().index} {os.environ.get('SCORES')}\n")
        if name == self.deadly and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "refused":
            raise InvalidInput("this group is refused")
        return [a.outcome.score for tree in sealed.sessions for a in tree.attempts if a.outcome]

    async def close(self) -> None:
        (self.folder / f"closed-{os.getpid()}").touch()


def scores(folder: Path, deadly: str = "") -> Scores:
    """Make a handler."""
    return Scores(folder, deadly)


def contents(out: Path) -> dict[tuple[str, int], Any]:
    """Return what the scored sessions of a run consist of, by task and sample."""
    found: dict[tuple[str, int], Any] = {}
    with Run(out) as run:
        assert run.check() == []
        for tree in run.sessions():
            first = tree.attempts[0]
            if first.status.scored:
                place = tree.record.task, tree.record.sample or 0
                assert place not in found, f"{place} was scored twice"
                assert first.outcome is not None
                said = [(t.message["tool_calls"], t.observation[0]["content"]) for t in tree.turns]
                found[place] = (tree.record.seed, first.outcome.score, json.dumps(said))
    return found


def main(out: str, processes: int, n: int, ration: int, launcher: str) -> None:
    """Collect, and print each acknowledged turn; used as a program that is killed.

    Each of several processes makes ``ration`` turns, and waits to be ended.
    """

    def note(event: Progress) -> None:
        if event.kind == "turn":
            print(event.session, flush=True)

    options: dict[str, Any] = {"samples": 2, "concurrency": 8, "on_progress": note}
    todo = tasks(n, seconds=0.004)
    if processes > 1:
        options["launcher"] = Streamed() if launcher == "Streamed" else ProcessLauncher()
        make = partial(rationed, ration, Path(out, "never"))
        work = collect_in_processes(SPEC, todo, make, out, processes=processes, **options)
        asyncio.run(work)
    else:
        asyncio.run(collect(SPEC, todo, policy(), out, **options))
    print("complete", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
