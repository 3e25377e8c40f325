"""Returned objects whose own methods raise: each fails only its own attempt, by the right part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.test_hostile import RAISES
from tests.worlds import call
from trajgym.envs import (
    Budgets,
    Env,
    EnvironmentFault,
    EnvSpec,
    Image,
    OtherTurn,
    Reply,
    Sampled,
    Session,
    ToolError,
    ToolResult,
    Truncate,
    tool,
)
from trajgym.envs.faults import UserCodeExit
from trajgym.rollout import AttemptPolicy, Policy, PolicyRequest, annotate, collect
from trajgym.rollout.annotators import Annotator
from trajgym.trajectory import Outcome, Run, Sampling, Segment, SessionTree, Task, Turn, Usage

KINDS = ("exit", "cancelled", "generator", "mute", "truncate")


def raising(base: type, *names: str) -> type:
    """Return a subclass whose methods of these names raise what its ``kind`` names."""

    def fail(self: Any, *_: Any, **__: Any) -> Any:
        error = RAISES[self.kind]()
        raise error

    made = type(f"Raising{base.__name__.title()}", (base,), dict.fromkeys(names, fail))
    if "__hash__" not in names and base is not object:
        made.__hash__ = base.__hash__  # type: ignore[method-assign, assignment]
    return made


_SHOWN = ("__repr__", "__str__", "__eq__", "__bool__", "__len__", "__iter__", "__getitem__")
_Thing = raising(object, *_SHOWN, "__float__", "__int__", "__hash__", "item", "tolist", "shape")
_Text = raising(str, *_SHOWN, "encode", "isascii", "__add__", "__format__")
_Dict = raising(dict, *_SHOWN, "items", "keys", "values", "get")
_List = raising(list, *_SHOWN)


class Values:
    """Makes values whose methods raise one kind of exception."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _made(self, kind: type, *arguments: Any) -> Any:
        made = kind(*arguments)
        object.__setattr__(made, "kind", self._kind)
        return made

    @property
    def thing(self) -> Any:
        return self._made(_Thing)

    def text(self, text: str) -> Any:
        return self._made(_Text, text)

    def dict(self, **given: Any) -> Any:
        return self._made(_Dict, given)

    def list(self, *given: Any) -> Any:
        return self._made(_List, given)


RESULTS: dict[str, Callable[[Values], Any]] = {
    "an object": lambda v: v.thing,
    "content": lambda v: ToolResult(content=v.thing),
    "reward": lambda v: ToolResult(reward=v.thing),
    "done": lambda v: ToolResult(done=v.thing),
    "truncated": lambda v: ToolResult(truncated=v.thing),
    "spawn": lambda v: ToolResult(spawn=v.thing),
    "signals": lambda v: ToolResult(signals=v.thing),
    "a dict of signals": lambda v: ToolResult(signals=v.dict(a=1)),
    "a signal": lambda v: ToolResult(signals={"a": v.thing}),
    "a list of signals": lambda v: ToolResult(signals={"a": v.list(1)}),
    "a list": lambda v: ToolResult(content=v.list("a")),
    "an image": lambda v: ToolResult(content=[Image(v.thing)]),
}
"""Results that can't be read."""

TEXTS: dict[str, Callable[[Values], Any]] = {
    "a text": lambda v: v.text("ok"),
    "a content": lambda v: ToolResult(content=v.text("ok")),
    "parts": lambda v: ToolResult(content=[v.text("o"), v.text("k")]),
    "a signal's text": lambda v: ToolResult(content="ok", signals={"a": v.text("b")}),
    "a signal's name": lambda v: ToolResult(content="ok", signals={v.text("a"): "b"}),
}
"""Results whose texts are instances of a subclass, as those of some libraries are."""

VERDICTS: dict[str, Callable[[Values], Any]] = {
    "an object": lambda v: v.thing,
    "a text": lambda v: v.text("1"),
    "score": lambda v: Outcome(score=v.thing, passed=True),
    "passed": lambda v: Outcome(score=1.0, passed=v.thing),
    "details": lambda v: Outcome(score=1.0, passed=True, details=v.dict(a=1)),
    "a detail": lambda v: Outcome(score=1.0, passed=True, details={"a": v.thing}),
}

REPLIES: dict[str, Callable[[Values], Any]] = {
    "an object": lambda v: v.thing,
    "message": lambda v: Reply(message=v.thing),
    "content": lambda v: Reply(message={"role": "assistant", "content": v.thing}),
    "a call": lambda v: Reply(message={"role": "assistant", "tool_calls": [v.thing]}),
    "context": lambda v: Reply(message={"role": "assistant"}, context=v.thing),
    "finish": lambda v: Reply(message={"role": "assistant"}, finish=v.thing),
    "policy": lambda v: Reply(message={"role": "assistant"}, policy=v.thing),
    "usage": lambda v: Reply(message={"role": "assistant"}, usage=v.thing),
    "sampled": lambda v: Reply(message={"role": "assistant"}, sampled=v.thing),
    "ids": lambda v: Reply(message={"role": "assistant"}, sampled=Sampled(
        prompt_ids=v.thing, response_ids=[1], logprobs=[0.0], segments=(Segment(1, 0, 0),),
    )),
    "paused": lambda v: Reply(message={"role": "assistant"}, paused_seconds=v.thing),
}  # fmt: skip


class Returns(Env):
    """Returns what its task names, from the hook that its configuration names."""

    budgets: ClassVar[Budgets] = Budgets(turns=3, seconds=600)

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def _at(self, hook: str, otherwise: Any) -> Any:
        if self.hook != hook:
            return otherwise
        found = VERDICTS if hook == "verify" else {**RESULTS, **TEXTS}
        kind, name = self.task.data["kind"], self.task.data["name"]
        return found[name](Values(kind))

    def reset(self, task: Task, seed: int | None) -> Any:
        self.task = task
        return self._at("reset", "go")

    @tool(concurrent=True)
    async def go(self) -> str:
        """Go on."""
        return self._at("tool", "ok")  # type: ignore[no-any-return]

    @tool
    def refuse(self) -> str:
        """Refuse."""
        raise ToolError("no")

    def on_refusal(self, error: str) -> Any:
        return self._at("on_refusal", error)

    def respond(self, message: Any) -> Any:
        return self._at("respond", ToolResult(done=True))

    def verify(self) -> Any:
        return self._at("verify", 1.0)


class Acts(Policy):
    """Calls every tool, then speaks, or replies what the task names."""

    name = "test:acts"

    async def sample(self, request: PolicyRequest) -> Reply:
        assert request.task is not None
        if "reply" in request.task.data:
            reply: Reply = REPLIES[request.task.data["reply"]](Values(request.task.data["kind"]))
            return reply
        if request.turn == 0:
            return Reply(message=call(("go", "{}"), ("go", "{}"), ("refuse", "{}")))
        return Reply(message={"role": "assistant", "content": "done"})


async def ends(out: Path, hook: str, named: dict[str, Any], field: str = "name") -> dict[str, str]:
    """Run an attempt for each value and kind; return how each ended, and its cause."""
    tasks = [
        Task(id=f"{name}/{kind}", prompt="", data={field: name, "kind": kind})
        for name in named
        for kind in KINDS
    ]
    spec = EnvSpec(id="tests.test_returned_values:Returns", config={"hook": hook})
    before = asyncio.all_tasks()
    report = await collect(spec, tasks, Acts(), out, concurrency=4)
    assert asyncio.all_tasks() == before
    assert report.sessions == report.groups == len(tasks)
    with Run(out) as run:
        assert run.check() == []
        trees = list(run.sessions())
    for tree in trees:
        assert len(tree.attempts[0].cause) < 3000
    return {tree.record.task: str(tree.attempts[0].status) for tree in trees}


@pytest.mark.parametrize("hook", ["reset", "tool", "on_refusal", "respond"])
async def test_a_result_that_cant_be_read_is_the_environments(tmp_path: Path, hook: str) -> None:
    """Whatever its methods raise, the process goes on and the attempt ends ``failed:env``."""
    found = await ends(tmp_path, hook, RESULTS)
    assert found == dict.fromkeys(found, "failed:env")


async def test_a_verdict_that_cant_be_read_is_the_verifications(tmp_path: Path) -> None:
    """Scores, verdicts and details whose methods raise end ``failed:verify``."""
    found = await ends(tmp_path, "verify", VERDICTS)
    assert found == dict.fromkeys(found, "failed:verify")


async def test_a_reply_that_cant_be_read_is_the_policys(tmp_path: Path) -> None:
    """The same is true of a policy, whichever field of its reply it is."""
    found = await ends(tmp_path, "", REPLIES, "reply")
    # Raised while the policy's answer is awaited.
    by_truncate = {"paused/truncate", "policy/truncate"}
    expected = {
        task: "truncated:memory" if task in by_truncate else "failed:policy" for task in found
    }
    assert found == expected


@pytest.mark.parametrize("hook", ["reset", "tool", "on_refusal", "respond"])
async def test_texts_of_a_subclass_are_texts(tmp_path: Path, hook: str) -> None:
    """Their methods are never called: the record holds plain strings."""
    found = await ends(tmp_path, hook, TEXTS)
    end = "truncated:turns" if hook == "respond" else "completed"
    assert found == dict.fromkeys(found, end)


class Noting(Env):
    """Overrides the method by which the session takes the turns of others."""

    def __init__(self, kind: str, at: str) -> None:
        self.kind, self.at = kind, at

    def reset(self, task: Task, seed: int | None) -> str:
        return "go"

    def take_others(self) -> Any:
        if self.at == "take":
            error = RAISES[self.kind]()
            raise error
        if self.at == "list":
            return Values(self.kind).list(1)
        return [OtherTurn(message=Values(self.kind).dict(role="assistant"), policy="x")]

    def verify(self) -> float:
        return 1.0


@pytest.mark.parametrize("kind", ["exit", "cancelled", "bare", "mute"])
@pytest.mark.parametrize("at", ["take", "list", "message"])
async def test_noted_turns_are_the_environments(tmp_path: Path, kind: str, at: str) -> None:
    """Turns of others that can't be taken fail the attempt as ``failed:env``."""
    spec = EnvSpec(id="tests.test_returned_values:Noting", config={"kind": kind, "at": at})
    report = await collect(spec, [Task(id="a"), Task(id="b")], Acts(), tmp_path, concurrency=1)
    if at == "message" and report.statuses == {"completed": 2}:
        return  # a dict of a subclass is read without calling its methods
    assert report.statuses == {"failed:env": 2}


class Vast(Env):
    """Returns more than can be handled on an event loop."""

    def __init__(self, what: str) -> None:
        self.what = what

    def reset(self, task: Task, seed: int | None) -> str:
        return "go"

    @tool
    def go(self) -> ToolResult:
        """Go on."""
        if self.what == "signals":
            return ToolResult(signals={"a": {"b": ["x" * 100_000] * 11}})
        if self.what == "parts":
            return ToolResult(content=["x"] * 20_000)
        if self.what == "truncated":
            return ToolResult(truncated="x" * 1_000)
        if self.what == "error":
            raise RuntimeError("é" * 50_000_000)
        if self.what == "part":
            raise EnvironmentFault("p" * 1_000, "why")
        if self.what == "budget":
            raise Truncate("b" * 1_000, "why")
        return ToolResult(content="ok")

    @tool
    def refuse(self) -> str:
        """Refuse."""
        return "ok"

    def verify(self) -> Outcome:
        details = {"a": list(range(200_000))} if self.what == "details" else {}
        return Outcome(score=1.0, passed=True, details=details)


@pytest.mark.parametrize(
    ("what", "status", "cause"),
    [
        ("signals", "failed:env", "tool 'go': signals hold more than 1,000,000 bytes"),
        ("parts", "failed:env", "tool 'go' content has 20,000 parts; return at most 10,000"),
        ("truncated", "failed:env", "truncated has more than 100 characters"),
        ("error", "failed:env", "... (50000000 characters)"),
        ("part", f"failed:{'p' * 100}", "why"),
        ("budget", f"truncated:{'b' * 100}", "why"),
        ("details", "failed:verify", "verify(): details hold more than 1,000,000 bytes"),
    ],
)
async def test_whatever_is_recorded_is_bounded(what: str, status: str, cause: str) -> None:
    """What can't be cut like a text is refused, and the record stays small."""
    spec = EnvSpec(id="tests.test_returned_values:Vast", config={"what": what})
    async with Session(spec, Task(id="a")) as session:
        await session.step(call(("go", "{}")))
        if not session.done:
            await session.step("done")
    assert str(session.status) == status
    assert cause in session.attempt.cause
    assert len(str(session.attempt)) < 100_000


async def test_a_replys_numbers_are_numbers(tmp_path: Path) -> None:
    """Token counts and sampling parameters of numpy are recorded as Python's."""
    spec = EnvSpec(id="tests.test_returned_values:Returns", config={"hook": ""})
    reply = Reply(
        message={"role": "assistant", "content": "done"},
        usage=Usage(prompt_tokens=np.int64(3), completion_tokens=np.int32(2)),  # type: ignore[arg-type]
        sampling=Sampling(temperature=np.float32(0.5)),  # type: ignore[arg-type]
    )
    async with Session(spec, Task(id="a")) as session:
        await session.step(reply)
    (turn,) = session.turns
    assert turn.usage == Usage(prompt_tokens=3, completion_tokens=2)
    assert type(turn.usage.prompt_tokens) is int
    assert turn.sampling is not None
    assert type(turn.sampling.temperature) is float


class Unbuildable(Env):
    """Raises before there is a session."""

    @classmethod
    def variant(cls, config: Any) -> type[Env]:
        if config["at"] == "variant":
            error = RAISES[config["kind"]]()
            raise error
        return cls

    def __init__(self, at: str, kind: str) -> None:
        error = RAISES[kind]()
        raise error


@pytest.mark.parametrize("kind", ["exit", "cancelled", "generator", "bare"])
@pytest.mark.parametrize("at", ["variant", "init"])
def test_a_class_that_exits_raises_an_error(at: str, kind: str) -> None:
    """What ends a process becomes an error of ours where an environment is found or built."""
    spec = EnvSpec(id="tests.test_returned_values:Unbuildable", config={"at": at, "kind": kind})
    with pytest.raises(UserCodeExit):
        spec.make()


async def test_an_instance_that_cant_be_built_is_the_environments(tmp_path: Path) -> None:
    """Each session of a class that raises in ``__init__`` ends ``failed:env``."""
    for kind in (kind for kind in RAISES if kind != "interrupt in a thread"):
        config = {"at": "init", "kind": kind}
        spec = EnvSpec(id="tests.test_returned_values:Unbuildable", config=config)
        report = await collect(spec, [Task(id="a")], Acts(), tmp_path / kind)
        part = "policy" if kind == "unavailable" else "env"  # an error of ours names its part
        assert report.statuses == {f"failed:{part}": 1}


class Odd(Annotator):
    """Returns one value, or raises in ``turns``."""

    source = "test:odd"

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value, self.error = value, error

    def turns(self, tree: SessionTree) -> list[Turn]:
        if self.error is not None:
            raise self.error
        return tree.turns

    async def annotate(self, tree: SessionTree, turn: Turn) -> Any:
        return self.value


async def test_signals_of_annotators_are_checked(tmp_path: Path) -> None:
    """Numbers of numpy are kept; NaN and what is no dict cost their turns, and no others."""
    spec = EnvSpec(id="tests.test_returned_values:Returns", config={"hook": ""})
    await collect(spec, [Task(id="a")], Acts(), tmp_path)
    for value in ({"x": float("nan")}, {"x": [float("inf")]}, "x", {1: 2}, {"x": object()}):
        report = await annotate(tmp_path, Odd(value))
        assert (report.annotated, report.failed.total()) == (0, 2)
    for error in (SystemExit(2), asyncio.CancelledError(), ValueError("no")):
        with pytest.raises(
            Exception, match=type(error).__name__ if error.args != ("no",) else "no"
        ):
            await annotate(tmp_path, Odd(error=error))

    def note(_: object) -> None:
        raise SystemExit("a callback")

    report = await annotate(tmp_path, Odd({"x": np.float32(0.5)}), on_progress=note)
    assert (report.annotated, report.failed.total()) == (2, 0)
    with Run(tmp_path) as run:
        assert [t.signals["x"] for tree in run.sessions() for t in tree.turns] == [0.5, 0.5]


class Prepares(AttemptPolicy):
    """Goes wrong before, in or after the attempt that it runs itself."""

    name = "test:prepares"

    def __init__(self, at: str, kind: str) -> None:
        self.at, self.kind = at, kind

    def _at(self, at: str) -> None:
        if at == self.at:
            error = RAISES[self.kind]()
            raise error

    @asynccontextmanager
    async def prepared(self, session: Session) -> AsyncIterator[None]:
        self._at("before")
        yield
        self._at("after")

    async def attempt(self, session: Session, *, after_turn: Any, **_: Any) -> None:
        if self.at == "task":
            await asyncio.ensure_future(self._later())
        self._at("attempt")
        await session.step("done")
        after_turn()

    async def _later(self) -> None:
        error = RAISES[self.kind]()
        raise error


@pytest.mark.parametrize("kind", ["exit", "cancelled", "generator", "bare", "mute"])
@pytest.mark.parametrize("at", ["before", "attempt", "task", "after"])
async def test_policies_that_run_attempts_are_contained(tmp_path: Path, at: str, kind: str) -> None:
    """Whatever fails, the store has the session with its end, and the task counts as failed."""
    spec = EnvSpec(id="tests.test_returned_values:Returns", config={"hook": ""})
    tasks = [Task(id="a"), Task(id="b")]
    report = await collect(spec, tasks, Prepares(at, kind), tmp_path, concurrency=1)
    status = "completed" if at == "after" else "failed:policy"
    assert report.statuses == {status: 2}
    assert report.failed_tasks == ([] if at == "after" else ["a", "b"])
    with Run(tmp_path) as run:
        assert run.check() == []
        assert [str(tree.attempts[0].status) for tree in run.sessions()] == [status] * 2


class OwnTasks(Env):
    """Raises in a task of its own, or in one that such a task created."""

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, task: Task, seed: int | None) -> str:
        return "go"

    async def _exit(self, depth: int) -> None:
        await asyncio.sleep(0)
        if depth:
            await asyncio.create_task(self._exit(depth - 1))
        raise SystemExit(3)

    async def _fail(self) -> None:
        await asyncio.sleep(0)
        raise LookupError("own")

    @tool
    async def go(self) -> str:
        """Go on."""
        if self.how == "gather":
            await asyncio.gather(self._exit(0), asyncio.sleep(60))
        elif self.how == "nested":
            await asyncio.create_task(self._exit(2))
        elif self.how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(self._exit(0))
        elif self.how == "group's error":
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fail())
        elif self.how == "caught":
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._fail())
            except* LookupError:
                pass
        elif self.how == "forgotten":
            asyncio.create_task(self._exit(0))  # noqa: RUF006 - as careless code does
            await asyncio.sleep(0.01)
        elif self.how == "cancelled":
            asyncio.create_task(self._exit(0)).cancel()
        return "ok"

    @tool
    def refuse(self) -> str:
        """Refuse."""
        return "ok"

    def verify(self) -> float:
        return 1.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("gather", "failed:env"),
        ("nested", "failed:env"),
        ("group", "failed:env"),
        ("group's error", "failed:env"),
        ("caught", "completed"),
        ("forgotten", "completed"),
        ("cancelled", "completed"),
    ],
)
async def test_what_a_task_of_its_own_raises(tmp_path: Path, how: str, status: str) -> None:
    """It fails whoever awaits the task; neither the event loop nor the session is cancelled."""
    factory = asyncio.get_running_loop().get_task_factory()
    spec = EnvSpec(id="tests.test_returned_values:OwnTasks", config={"how": how})
    report = await collect(spec, [Task(id=f"t{i}") for i in range(3)], Acts(), tmp_path)
    assert report.statuses == {status: 3}
    assert asyncio.get_running_loop().get_task_factory() is factory
