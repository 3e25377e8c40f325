"""Environments, policies and callbacks that raise anything, anywhere: accounting always adds up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.worlds import call
from trajgym.envs import (
    Budgets,
    Env,
    EnvSpec,
    OtherTurn,
    Reply,
    ToolResult,
    Truncate,
    register,
    tool,
)
from trajgym.envs.faults import UserCodeExit, contained, describe, fault_of, traceback_of
from trajgym.rollout import (
    Expansion,
    Policy,
    PolicyRequest,
    PolicyUnavailable,
    Progress,
    RunIncomplete,
    Runner,
    annotate,
    collect,
)
from trajgym.rollout.annotators import Annotator
from trajgym.trajectory import Outcome, Run, Store, Task

HOOKS = (
    *("reset", "take_others", "tool", "on_refusal", "respond", "snapshot", "verify", "close"),
    *("sample", "callback"),
)


class Mute(Exception):
    """Neither text nor repr can be had."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class Flood(Exception):
    """Has two million characters of text."""

    def __str__(self) -> str:
        return "x" * 2_000_000


class Bare(BaseException):
    """No ``Exception``, as those of some frameworks."""


def cancelled_inside() -> asyncio.CancelledError:
    return asyncio.CancelledError("a task of its own")


RAISES: dict[str, Any] = {
    "cancelled": cancelled_inside,
    "exit": lambda: SystemExit(3),
    "generator": lambda: GeneratorExit("g"),
    "bare": lambda: Bare("b"),
    "timeout": lambda: TimeoutError("own"),
    "stop": lambda: StopIteration(1),
    "stop async": lambda: StopAsyncIteration(1),
    "mute": Mute,
    "flood": Flood,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), Mute()]),
    "memory": lambda: MemoryError(),
    "recursion": lambda: RecursionError("deep"),
    "surrogate": lambda: RuntimeError("caf\udce9"),
    "truncate": lambda: Truncate("memory", "used up"),
    "unavailable": lambda: PolicyUnavailable("away"),
    "interrupt in a thread": lambda: KeyboardInterrupt(),
}


class Plan:
    """Which hook of a task raises what."""

    def __init__(self, task: Task) -> None:
        self.hook: str = task.data["hook"]
        self.kind: str = task.data["kind"]
        self.turn: int = task.data["turn"]

    def at(self, hook: str, turn: int = 0) -> None:
        if self.hook != hook or (hook in {"tool", "sample", "callback"} and self.turn != turn):
            return
        # A KeyboardInterrupt on the main thread is Ctrl-C: it ends a run by right.
        if self.kind.startswith("interrupt") and (
            threading.current_thread() is threading.main_thread()
        ):
            return
        error = RAISES[self.kind]()
        raise error


class Hostile(Env):
    """Goes wrong where its task says."""

    budgets: ClassVar[Budgets] = Budgets(turns=4, seconds=600)
    plans: ClassVar[dict[str, Plan]] = {}
    live: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self.turn = 0

    def _at(self, hook: str) -> None:
        self.plan.at(hook, self.turn)

    def _open(self, task: Task) -> str:
        self.live.add(id(self))
        self.plan = Plan(task)
        self._at("reset")
        return "go"

    def _tool(self) -> ToolResult:
        self._at("tool")
        self.turn += 1
        return ToolResult(content="ok", reward=0.5)

    def take_others(self) -> list[OtherTurn]:
        self._at("take_others")
        return super().take_others()

    def _closed(self) -> None:
        self.live.discard(id(self))
        plan = getattr(self, "plan", None)
        if plan is not None:
            plan.at("close")


@register("test/hostile-plain")
class HostilePlain(Hostile):
    """Every method is a plain function."""

    def reset(self, task: Task, seed: int | None) -> str:
        return self._open(task)

    @tool
    def go(self) -> ToolResult:
        """Go on."""
        return self._tool()

    def respond(self, message: Any) -> ToolResult:
        self._at("respond")
        return ToolResult(done=True)

    def on_refusal(self, error: str) -> str:
        self._at("on_refusal")
        return error

    def verify(self) -> float:
        self._at("verify")
        return 1.0

    def snapshot(self) -> str | None:
        self._at("snapshot")
        return None

    def close(self) -> None:
        self._closed()


@register("test/hostile-async")
class HostileAsync(Hostile):
    """Every method is a coroutine function."""

    async def reset(self, task: Task, seed: int | None) -> str:
        await asyncio.sleep(0)
        return self._open(task)

    @tool(concurrent=True)
    async def go(self) -> ToolResult:
        """Go on."""
        await asyncio.sleep(0)
        return self._tool()

    async def respond(self, message: Any) -> ToolResult:
        self._at("respond")
        return ToolResult(done=True)

    async def on_refusal(self, error: str) -> str:
        self._at("on_refusal")
        return error

    async def verify(self) -> float:
        await asyncio.sleep(0)
        self._at("verify")
        return 1.0

    async def snapshot(self) -> str | None:
        self._at("snapshot")
        return None

    async def close(self) -> None:
        self._closed()


class HostilePolicy(Policy):
    """Calls the tool twice, then says a word; goes wrong where the task says."""

    name = "test:hostile"

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        await asyncio.sleep(0)
        Plan(request.task).at("sample", request.turn)
        if request.turn < 2:
            return Reply(message=call(("go", "{}"), ("go", "{}"), ("no_tool", "{}")))
        return Reply(message={"role": "assistant", "content": "done"})


def hostile_tasks(n: int, seed: int) -> list[Task]:
    chance = random.Random(seed)
    return [
        Task(
            id=f"t{i}",
            prompt="",
            data={
                "hook": chance.choice(HOOKS),
                "kind": chance.choice(list(RAISES)),
                "turn": chance.randrange(3),
            },
        )
        for i in range(n)
    ]


@pytest.mark.parametrize("env", ["test/hostile-plain", "test/hostile-async"])
@pytest.mark.parametrize("sessions", [400, pytest.param(5_000, marks=pytest.mark.slow)])
async def test_accounting_adds_up(tmp_path: Path, env: str, sessions: int) -> None:
    """Whatever is raised wherever, each session has one true end, and nothing stays running."""
    tasks = hostile_tasks(sessions, sessions)
    told: Counter[str] = Counter()
    by_id = {task.id: task for task in tasks}
    turns: Counter[str] = Counter()

    def note(event: Progress) -> None:
        told[event.kind] += 1
        if event.kind == "turn":
            turns[event.session] += 1
            Plan(by_id[event.task]).at("callback", turns[event.session] - 1)
        elif event.kind in {"ended", "sealed"} and told[event.kind] % 7 == 0:
            raise SystemExit(event.kind)

    before = asyncio.all_tasks()
    report = await collect(
        EnvSpec(id=env),
        tasks,
        HostilePolicy(),
        tmp_path,
        concurrency=16,
        snapshot_every=1,
        on_progress=note,
    )
    assert asyncio.all_tasks() == before
    assert not Hostile.live
    assert report.sessions == report.groups == sessions
    assert (told["began"], told["ended"], told["sealed"]) == (sessions, sessions, sessions)
    with Run(tmp_path) as run:
        summaries = list(run.summaries())
        assert len(summaries) == len({s.record.id for s in summaries}) == sessions
        assert all(group.sealed for group in run.groups())
        statuses = Counter[str]()
        for tree in run.sessions():
            (attempt,) = tree.attempts
            statuses[str(attempt.status)] += 1
            expect(by_id[tree.record.task].data, str(attempt.status), attempt.cause)
        assert statuses == report.statuses
    again = await collect(EnvSpec(id=env), tasks[:0], HostilePolicy(), tmp_path)
    assert again.sessions == 0


def expect(plan: dict[str, Any], status: str, cause: str) -> None:
    """The end that a fault has: in its own part, with a cause, and never a score for nothing."""
    hook, kind = plan["hook"], plan["kind"]
    assert len(cause) < 3000
    if status.startswith("failed"):
        assert cause
    if hook == "close" or kind.startswith("interrupt"):
        return
    part = {"sample": "policy", "callback": "callback", "verify": "verify"}.get(hook, "env")
    if kind == "truncate" and hook in {"tool", "sample", "respond", "on_refusal"}:
        assert status == "truncated:memory"
    elif status == "completed":
        # The hook was never reached, or the attempt had ended: a callback after the last turn.
        assert hook in {"tool", "respond", "callback"}
    elif kind == "unavailable" and hook != "take_others":
        assert status == "failed:policy"  # an error of ours names its part
    else:
        assert status == f"failed:{part}", (plan, cause)


class Own(Env):
    """Awaits a task of its own that was cancelled, in one hook."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    async def _at(self, hook: str) -> None:
        if hook == self.hook:
            own = asyncio.ensure_future(asyncio.sleep(60))
            own.cancel()
            await own

    async def reset(self, task: Task, seed: int | None) -> str:
        await self._at("reset")
        return "go"

    @tool
    async def go(self) -> str:
        """Go on."""
        await self._at("tool")
        return "ok"

    async def verify(self) -> float:
        await self._at("verify")
        return 1.0

    async def close(self) -> None:
        await self._at("close")


class Going(Policy):
    """One tool call, one word."""

    name = "test:going"

    async def sample(self, request: PolicyRequest) -> Reply:
        if not request.turn:
            return Reply(message=call(("go", "{}")))
        return Reply(message={"role": "assistant", "content": "done"})


def plain(n: int) -> list[Task]:
    return [Task(id=f"t{i}", prompt="") for i in range(n)]


@pytest.mark.parametrize(
    ("hook", "status"),
    [
        ("reset", "failed:env"),
        ("tool", "failed:env"),
        ("verify", "failed:verify"),
        ("close", "completed"),
    ],
)
async def test_a_cancellation_from_inside_is_the_environments(
    tmp_path: Path, hook: str, status: str
) -> None:
    """Eight tasks, one at a time: all run, and the part that raised it is named."""
    spec = EnvSpec(id="tests.test_hostile:Own", config={"hook": hook})
    report = await collect(spec, plain(8), Going(), tmp_path, concurrency=1)
    assert report.statuses == {status: 8}
    assert report.groups == 8


async def test_a_cancellation_from_outside_is_not(tmp_path: Path) -> None:
    """The owner of a task cancels it: nothing contains that, and code can't swallow it."""
    swallowed = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()

    async def run() -> None:
        with contained():
            await stubborn()
        pytest.fail("it went on")

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert swallowed.is_set()


class CancelsItself(Env):
    """Cancels the task that it runs in."""

    async def reset(self, task: Task, seed: int | None) -> str:
        current = asyncio.current_task()
        assert current is not None
        if task.id == "t1":
            current.cancel()
        await asyncio.sleep(0)
        return "go"

    @tool
    def go(self) -> str:
        """Go on."""
        return "ok"

    def verify(self) -> float:
        return 1.0


async def test_a_runner_with_work_left_undone_says_so(tmp_path: Path) -> None:
    """Code that cancels its own task costs its session, no worker; the run is not called done."""
    ended: list[str] = []

    def note(event: Progress) -> None:
        if event.kind == "sealed":
            ended.append(event.task)

    spec = EnvSpec(id="tests.test_hostile:CancelsItself")
    with pytest.raises(RunIncomplete, match="t1"):
        await collect(spec, plain(4), Going(), tmp_path, concurrency=1, on_progress=note)
    assert ended == ["t0", "t2", "t3"]


async def test_tasks_that_break_are_raised(tmp_path: Path) -> None:
    """A source of tasks that raises, SystemExit included, ends the run with that error."""

    def broken() -> Any:
        yield from plain(2)
        raise SystemExit(4)

    with pytest.raises(UserCodeExit, match="SystemExit: 4"):
        await collect(EnvSpec(id="tests.test_hostile:CancelsItself"), broken(), Going(), tmp_path)

    async def cancelled() -> Any:
        yield plain(1)[0]
        raise asyncio.CancelledError

    async with Store(tmp_path / "other") as store:
        spec = EnvSpec(id="tests.test_hostile:CancelsItself")
        async with Runner(spec, cancelled(), Going(), store=store) as runner:
            with pytest.raises(UserCodeExit):
                [sealed async for sealed in runner]


def test_any_exception_has_a_bounded_description() -> None:
    """Text that raises, or is enormous, is replaced or cut; the type is always there."""
    for error, said in ((Mute(), "Mute: <no text"), (Flood(), "Flood: xxx")):
        fault = fault_of(error)
        assert fault.cause.startswith(said)
        assert len(fault.cause) < 2_200
        assert len(traceback_of(error)) < 51_000
    assert describe(KeyError()) == "KeyError"
    assert "caf\ufffd" in describe(OSError("caf\udce9"))


class Numbers(Env):
    """Returns what its task names, where its configuration says."""

    def __init__(self, where: str) -> None:
        self.where = where

    def reset(self, task: Task, seed: int | None) -> str:
        self.value = VALUES[task.id]
        return "go"

    @tool
    def go(self) -> ToolResult:
        """Go on."""
        if self.where == "reward":
            return ToolResult(content="ok", reward=self.value)
        if self.where == "done":
            return ToolResult(content="ok", done=self.value)
        if self.where == "signals":
            return ToolResult(content="ok", signals={"a": {"b": [self.value]}})
        return ToolResult(content="ok")

    def verify(self) -> Any:
        if self.where == "verdict":
            return self.value
        if self.where == "score":
            return Outcome(score=self.value, passed=self.value, details={"x": self.value})
        return 0.5


class Scalar:
    """What a tensor without dimensions looks like."""

    shape = ()

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


VALUES: dict[str, Any] = {
    "float32": np.float32(1),
    "float64": np.float64(1),
    "int64": np.int64(1),
    "bool": np.bool_(True),
    "0-d": np.array(1.0),
    "tensor": Scalar(1.0),
    "decimal": Decimal("1"),
    "fraction": Fraction(1),
    "true": True,
    "nan": float("nan"),
    "inf": float("inf"),
    "nan32": np.float32("nan"),
    "snan": Decimal("sNaN"),
    "huge": Fraction(10**400),
    "object": object(),
}
BAD = {"nan", "inf", "nan32", "snan", "huge", "object"}


@pytest.mark.parametrize("where", ["reward", "done", "signals", "verdict", "score"])
async def test_numbers_are_numbers(tmp_path: Path, where: str) -> None:
    """Numbers of numpy, torch and the standard library count; the rest is the environment's."""
    spec = EnvSpec(id="tests.test_hostile:Numbers", config={"where": where})
    tasks = [Task(id=kind, prompt="") for kind in VALUES]
    await collect(spec, tasks, Going(), tmp_path)
    with Run(tmp_path) as run:
        trees = {tree.record.task: tree for tree in run.sessions()}
    part = "verify" if where in {"verdict", "score"} else "env"
    for kind, tree in trees.items():
        (attempt,) = tree.attempts
        calls = tree.turns[0].message["tool_calls"]
        assert calls[0]["function"]["name"] == "go"  # no turn is lost
        if kind in BAD:
            assert str(attempt.status) == f"failed:{part}", kind
            assert any(word in attempt.cause for word in ("must be", "return a float", "holds"))
            continue
        assert str(attempt.status) == "completed", (kind, attempt.cause)
        if where == "reward":
            assert tree.turns[0].reward == 1.0
        elif where == "signals":
            assert tree.turns[0].signals == {"a": {"b": [1]}}
        elif where in {"verdict", "score"}:
            assert attempt.outcome is not None
            assert (attempt.outcome.score, attempt.outcome.passed) == (1.0, True)


@dataclass(frozen=True)
class BadPlan(Expansion):
    """Raises what its configuration names, in place of a plan."""

    kind: str

    def plan(self, tree: Any, number: int, chance: random.Random) -> list[int | None]:
        error = RAISES[self.kind]()
        raise error


@pytest.mark.parametrize("kind", [k for k in RAISES if not k.startswith("interrupt")])
async def test_a_plan_that_raises_is_a_failed_fork(tmp_path: Path, kind: str) -> None:
    """An expansion's fault is an attempt ``failed:fork``; the first attempt keeps its score."""
    spec = EnvSpec(id="tests.test_hostile:Own", config={"hook": ""})
    report = await collect(spec, plain(1), Going(), tmp_path, expansion=BadPlan(kind))
    assert report.statuses == {"completed": 1}
    with Run(tmp_path) as run:
        (tree,) = run.sessions()
    assert [str(one.status) for one in tree.attempts] == ["completed", "failed:fork"]
    assert tree.attempts[1].cause


class BadJudge(Annotator):
    """Raises a different thing for each turn."""

    source = "test:bad"

    def __init__(self) -> None:
        self.kinds = [k for k in RAISES if not k.startswith("interrupt")]

    async def annotate(self, tree: Any, turn: Any) -> dict[str, Any]:
        if not self.kinds:
            return {"fine": True}
        error = RAISES[self.kinds.pop()]()
        raise error

    def turns(self, tree: Any) -> list[Any]:
        return list(tree.turns)


async def test_a_judge_that_raises_costs_its_turn(tmp_path: Path) -> None:
    """Every turn is reached, whatever the judge raised for those before it."""
    spec = EnvSpec(id="tests.test_hostile:Own", config={"hook": ""})
    await collect(spec, plain(12), Going(), tmp_path)
    judge = BadJudge()
    failures = len(judge.kinds)
    report = await annotate(tmp_path, judge, concurrency=2, give_up=100)
    assert report.failed.total() == failures
    assert report.annotated == 24 - failures
