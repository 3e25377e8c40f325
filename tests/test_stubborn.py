"""User code that ignores its cancellation: its session ends, and its slot is free."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.clock import Forward
from tests.worlds import call
from trajgym.envs import Budgets, Env, EnvSpec, Reply, Session, tool
from trajgym.envs.faults import contained, stoppable
from trajgym.rollout import Policy, PolicyRequest, Runner, ScriptedPolicy, annotate, collect
from trajgym.rollout.annotators import Annotator
from trajgym.trajectory import Run, SessionTree, Store, Task, Turn


async def stubborn() -> None:
    """Never end for a cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def deaf() -> None:
    """Never end, whatever is raised here."""
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


async def polling() -> None:
    """Look again and again, with a timeout of its own, and take every cancellation for it."""
    while True:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(0.02):
                await asyncio.Event().wait()


async def spinning() -> None:
    """Give way to others without ever waiting."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


KINDS = {"stubborn": stubborn, "deaf": deaf, "polling": polling, "spinning": spinning}


SECONDS = 600.0


class Stubborn(Env):
    """Swallows cancellations in the hook that its configuration names, after its deadline."""

    budgets: ClassVar[Budgets] = Budgets(turns=4, seconds_per_turn=SECONDS)
    reset_seconds: ClassVar[float] = SECONDS
    verify_seconds: ClassVar[float] = SECONDS
    close_seconds: ClassVar[float] = SECONDS
    cancel_seconds: ClassVar[float] = 0.1
    forward: ClassVar[Forward]

    def __init__(self, hook: str, kind: str = "stubborn") -> None:
        self.hook, self.kind = hook, kind

    async def _at(self, hook: str) -> None:
        if hook == self.hook:
            Stubborn.forward(SECONDS)
            await KINDS[self.kind]()

    async def reset(self, task: Task, seed: int | None) -> str:
        await self._at("reset")
        return "go"

    @tool
    async def go(self) -> str:
        """Go on."""
        await self._at("tool")
        return "ok"

    @tool(concurrent=True)
    async def along(self) -> str:
        """Go on beside others."""
        await self._at("concurrent tool")
        return "ok"

    async def respond(self, message: Any) -> str:
        await self._at("respond")
        return "go on"

    async def snapshot(self) -> str | None:
        await self._at("snapshot")
        return None

    async def verify(self) -> float:
        await self._at("verify")
        return 1.0

    async def close(self) -> None:
        await self._at("close")

    @classmethod
    async def close_run(cls, config: Any) -> None:
        if config["hook"] == "close_run":
            await stubborn()


class Going(Policy):
    """Calls every tool, then speaks, and is stubborn if asked to be."""

    name = "test:going"
    cancel_seconds: ClassVar[float] = 0.1

    def __init__(self, hook: str = "") -> None:
        self.hook = hook

    async def sample(self, request: PolicyRequest) -> Reply:
        if self.hook == "policy":
            Stubborn.forward(SECONDS)
            await stubborn()
        if request.turn == 0:
            return Reply(message=call(("go", "{}"), ("along", "{}"), ("along", "{}")))
        return Reply(message={"role": "assistant", "content": "well"})


@pytest.fixture(autouse=True)
def _clock(forward: Forward) -> None:
    Stubborn.forward = forward


@pytest.mark.parametrize(
    ("hook", "status", "cause"),
    [
        ("reset", "failed:env", "Stubborn.reset ignored its cancellation for 0.1 s"),
        ("tool", "failed:env", "Stubborn.go ignored its cancellation for 0.1 s"),
        ("concurrent tool", "failed:env", "Stubborn.along ignored its cancellation for 0.1 s"),
        ("respond", "failed:env", "Stubborn.respond ignored its cancellation for 0.1 s"),
        ("snapshot", "failed:env", "Stubborn.snapshot ignored its cancellation for 0.1 s"),
        ("verify", "failed:verify", "Stubborn.verify ignored its cancellation for 0.1 s"),
        ("policy", "failed:policy", "the policy ignored its cancellation for 0.1 s"),
        ("close", "truncated:turns", "4 of 4 turns used"),
    ],
)
async def test_a_stubborn_part_costs_its_session_and_no_slot(
    tmp_path: Path, hook: str, status: str, cause: str
) -> None:
    """One slot, two tasks: both end by the part that would not stop, and the run ends."""
    spec = EnvSpec(id="tests.test_stubborn:Stubborn", config={"hook": hook})
    tasks = [Task(id="a"), Task(id="b")]
    before = asyncio.all_tasks()
    report = await collect(
        spec, tasks, Going(hook), tmp_path, concurrency=1, snapshot_every=int(hook == "snapshot")
    )
    assert report.statuses == {status: 2}
    assert report.groups == 2
    assert asyncio.all_tasks() == before
    with Run(tmp_path) as run:
        for tree in run.sessions():
            assert cause in tree.attempts[0].cause


# Python reports code that refuses to be closed when it frees it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_session_of_its_own_ends_too(kind: str) -> None:
    """The same is true without a runner."""
    spec = EnvSpec(id="tests.test_stubborn:Stubborn", config={"hook": "tool", "kind": kind})
    async with Session(spec, Task(id="a")) as session:
        result = await session.step(call(("go", "{}")))
    assert result.done
    assert "the call was stopped" in result.observation[0]["content"]
    assert str(session.status) == "failed:env"
    assert "abandoned" in session.attempt.cause


async def test_the_end_of_a_run_waits_for_nothing_stubborn(tmp_path: Path) -> None:
    """A runner that is left while a tool runs cancels it, gives it up, and records the session."""
    spec = EnvSpec(id="tests.test_stubborn:Stubborn", config={"hook": "tool"})
    begun = asyncio.Event()

    async def run() -> None:
        async with (
            Store(tmp_path) as store,
            Runner(
                spec,
                [Task(id="a")],
                ScriptedPolicy.always(call(("go", "{}"))),
                store=store,
                budgets=Budgets(seconds_per_turn=None),
                on_progress=lambda _: begun.set(),
            ) as runner,
        ):
            async for _ in runner:
                pass

    task = asyncio.create_task(run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with Run(tmp_path) as found:
        assert [str(t.attempts[0].status) for t in found.sessions()] == ["cancelled"]


class StubbornJudge(Annotator):
    """Never gives an answer."""

    source = "judge:stubborn"
    cancel_seconds: ClassVar[float] = 0.1

    def turns(self, tree: SessionTree) -> list[Turn]:
        return tree.turns

    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        await asyncio.gather(stubborn(), stubborn())
        return {}


async def test_a_stubborn_judge_costs_its_turns(tmp_path: Path) -> None:
    """Each turn fails by its deadline."""
    spec = EnvSpec(id="tests.test_stubborn:Stubborn", config={"hook": ""})
    await collect(spec, [Task(id="a")], Going(), tmp_path)
    before = asyncio.all_tasks()
    report = await annotate(tmp_path, StubbornJudge(), seconds=0.1)
    assert report.failed.total() == 4
    left = asyncio.all_tasks() - before
    assert len(left) == 8  # tasks of the judge's own: nothing can end them
    # pytest's loop would wait for them as asyncio.run does.
    for task in left:
        task.get_coro().close()  # type: ignore[union-attr]


async def test_own_timeouts_are_no_cancellation() -> None:
    """Code that cancels itself by timeouts, over a longer time than the grace, is left alone."""

    async def patient() -> str:
        for _ in range(8):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await asyncio.Event().wait()
        return "done"

    assert await stoppable(patient(), "patient", seconds=0.05) == "done"


async def test_an_earlier_timeout_of_the_code_does_not_count() -> None:
    """A second timeout is not an ignored cancellation, even if the loop was blocked meanwhile."""

    async def blocking() -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                time.sleep(0.2)  # noqa: ASYNC251 - both times are over when the loop goes on
                await asyncio.Event().wait()
        return "done"

    assert await stoppable(blocking(), "blocking", seconds=0.05) == "done"


async def test_what_cleans_up_in_time_is_waited_for() -> None:
    """Code that needs a while after its cancellation ends by itself."""
    steps = []

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            steps.append("tidied")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await stoppable(tidy(), "tidy", seconds=60)
    assert steps == ["tidied"]
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_awaitables_of_every_kind() -> None:
    """Coroutines, tasks, futures and objects with ``__await__`` give their results and errors."""

    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return 3

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("own")

    assert await stoppable(asyncio.sleep(0, 1), "a") == 1
    assert await stoppable(asyncio.ensure_future(asyncio.sleep(0.001, 2)), "b") == 2
    assert await stoppable(Later(), "c") == 3
    assert await stoppable(asyncio.gather(asyncio.sleep(0, 4), asyncio.sleep(0, 5)), "d") == [4, 5]
    for failing in (fails(), asyncio.ensure_future(fails())):
        with pytest.raises(LookupError, match="own"):
            await stoppable(failing, "e")


@pytest.mark.parametrize("phase", ["body", "end"])
@pytest.mark.parametrize("real", [False, True])
async def test_the_cancellation_by_a_group_is_its_own(phase: str, real: bool) -> None:
    """A task group whose task fails cancels its parent: that is no cancellation by the owner."""
    waits, release = asyncio.Event(), asyncio.Event()
    caught: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("own")

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            waits.set()
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
            await release.wait()

    async def code() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(slow())
                group.create_task(fails())
                if phase == "body":
                    await asyncio.Event().wait()
        except* LookupError:
            caught.append("own")
        return "went on"

    async def session() -> str:
        with contained():
            return await stoppable(code(), "code", seconds=60)

    task = asyncio.create_task(session())
    await waits.wait()
    if real:
        task.cancel()
        await asyncio.sleep(0)
    release.set()
    if real:
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task == "went on"
        assert caught == ["own"]
        assert not task.cancelling()
