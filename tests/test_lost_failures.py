"""Failures while something is closed, or after it has ended: none hides another, none is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.worlds import Counter, Snapshots, call
from trajgym.adapters import Annotators
from trajgym.envs import EnvSpec, Reply, Session
from trajgym.rollout import Policy, PolicyRequest, Progress, Runner, collect
from trajgym.rollout.annotators import Annotator
from trajgym.rollout.mixture import Mixture, Part
from trajgym.server import EnvApp, ServerError, running
from trajgym.trajectory import Run, SessionTree, Store, StoreError, Task, Turn

TASK = Task(id="t")
SPEC = EnvSpec(id="test/counter")


async def test_environments_close_although_no_end_can_be_recorded(tmp_path: Path) -> None:
    """A store that fails leaves no environment of the session open, nor of its rivals."""
    store = Store(tmp_path)
    session = Session(SPEC, TASK, store=store)

    async def attempt() -> None:
        async with session:
            await session.step(call(("add", "{}")))
            await session.fork(0)
            await session.fork(0)
            await store.aclose()
            await session.step(call(("add", "{}")))

    with pytest.raises(StoreError):
        await attempt()
    assert Counter.closed.count(session.id) == 3


class Undiscarded(Snapshots):
    """Raises what is no ``Exception`` when its snapshots are deleted."""

    raised: BaseException = SystemExit("no")

    @classmethod
    async def discard_snapshots(cls, config: Mapping[str, Any], snapshots: Sequence[str]) -> None:
        raise cls.raised


@pytest.mark.parametrize(
    "raised", [SystemExit("no"), asyncio.CancelledError("mine"), OSError("no")]
)
async def test_snapshots_that_stay_change_no_end(
    tmp_path: Path,
    raised: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever deleting the snapshots raises is logged; run and session end as they would have."""
    monkeypatch.setattr(Undiscarded, "raised", raised)
    spec = EnvSpec(id="tests.test_lost_failures:Undiscarded")
    report = await collect(spec, [TASK], Finisher(), tmp_path, snapshot_every=1)
    assert report.statuses == {"completed": 1}
    assert "deleting its snapshots failed" in caplog.text


class Finisher(Policy):
    """Adds once, then ends the episode."""

    name = "finisher"

    async def sample(self, request: PolicyRequest) -> Reply:
        return Reply(message=call(("finish" if request.turn else "add", "{}")))


async def test_a_failure_after_the_end_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that fails at the last turn changes no outcome, and its error is not lost."""

    def on_progress(event: Progress) -> None:
        if event.turn is not None and event.turn.index == 1:
            raise ValueError("the callback is broken")

    with caplog.at_level(logging.WARNING):
        await collect(SPEC, [TASK], Finisher(), tmp_path, on_progress=on_progress)
    with Run(tmp_path) as run:
        (tree,) = run.sessions()
    assert str(tree.attempts[0].status) == "completed"
    assert "the callback is broken" in caplog.text


class Unclosed(Counter):
    """Can't close what the sessions of a run share."""

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        raise RuntimeError("no close")


class Unopened(Counter):
    """Can't open what the sessions of a run share."""

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        raise RuntimeError("no open")


async def test_closing_a_run_hides_no_earlier_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of the caller's is raised as it is; that close_run() failed too is logged."""
    spec = EnvSpec(id="tests.test_lost_failures:Unclosed")

    async def run(store: Store, own: Exception | None) -> None:
        async with Runner(spec, [TASK], Finisher(), store=store):
            if own is not None:
                raise own

    async with Store(tmp_path) as store:
        with pytest.raises(KeyError, match="the caller's own"):
            await run(store, KeyError("the caller's own"))
        assert "no close" in caplog.text
        with pytest.raises(RuntimeError, match="no close"):
            await run(store, None)


async def test_a_run_that_can_not_be_opened_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several environments one fails to open: that is raised, not what closing meets."""
    names = ("Unclosed", "Unopened")
    specs = [EnvSpec(id=f"tests.test_lost_failures:{name}") for name in names]
    parts = [
        Part(name=f"p{i}", spec=spec, tasks=[Task(id=f"t{i}")]) for i, spec in enumerate(specs)
    ]
    async with Store(tmp_path) as store:
        with pytest.raises(RuntimeError, match="no open"):
            async with Runner(Mixture(parts), None, Finisher(), store=store):
                pass
    assert "no close" in caplog.text


class Noted(Counter):
    """Notes that what its sessions share was closed."""

    ended: ClassVar[list[str]] = []

    @classmethod
    async def close_run(cls, config: Mapping[str, Any]) -> None:
        cls.ended.append(config["name"])

    def __init__(self, name: str) -> None:
        super().__init__()


async def test_a_server_closes_what_it_opened() -> None:
    """One environment that can't be opened, or closed, leaves none of the others open."""

    def spec(kind: str, **config: str) -> EnvSpec:
        return EnvSpec(id=f"tests.test_lost_failures:{kind}", config=config)

    Noted.ended.clear()
    app = EnvApp({"a": spec("Noted", name="a"), "b": spec("Unopened")})
    with pytest.raises(ServerError):
        async with running(app):
            pass
    assert Noted.ended == ["a"]
    app = EnvApp(
        {"b": spec("Noted", name="b"), "c": spec("Unclosed"), "d": spec("Noted", name="d")}
    )
    async with running(app):
        pass
    assert Noted.ended == ["a", "d", "b"]


class Closing(Annotator):
    """Notes that it was closed, and may raise then."""

    def __init__(self, source: str, error: Exception | None = None) -> None:
        self.source, self.error, self.closed = source, error, False

    def turns(self, tree: SessionTree) -> list[Turn]:
        return []

    async def annotate(self, tree: SessionTree, turn: Turn) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        self.closed = True
        if self.error is not None:
            raise self.error


async def test_every_annotator_is_closed() -> None:
    """One that can't be closed keeps no other open, and is reported."""
    both = Closing("a", OSError("a stays")), Closing("b")
    with pytest.raises(OSError, match="a stays"):
        await Annotators(both).close()
    assert [one.closed for one in both] == [True, True]


async def test_a_failure_of_a_run_keeps_its_cause(tmp_path: Path) -> None:
    """What is raised says what it is due to, as it did where it was raised."""

    def tasks() -> Iterator[Task]:
        yield TASK
        try:
            raise KeyError("row 2")
        except KeyError as error:
            raise LookupError("no second task") from error

    with pytest.raises(LookupError, match="no second task") as caught:
        await collect(SPEC, tasks(), Finisher(), tmp_path)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_runner_that_failed_unnoticed_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller that leaves a runner without reading on finds in the log that it had failed."""

    def tasks() -> Iterator[Task]:
        yield TASK
        raise LookupError("no second task")

    async with (
        Store(tmp_path) as store,
        Runner(SPEC, tasks(), Finisher(), store=store, concurrency=1) as runner,
    ):
        await anext(runner)
        await asyncio.wait([runner._supervisor.task])
    assert "no second task" in caplog.text
