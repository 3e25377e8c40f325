"""Failures while something is closed, or after it has ended: none hides another, none is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import Counter, Snapshots, call
from trajgym.envs import EnvSpec, Reply, Session
from trajgym.rollout import Policy, PolicyRequest, Progress, collect
from trajgym.trajectory import Run, Store, StoreError, Task

TASK = Task(id="t")
SPEC = EnvSpec(id="test/counter")


async def test_environments_close_although_no_end_can_be_recorded(tmp_path: Path) -> None:
    """A store that fails leaves no environment of the session open, nor of its rivals."""
    store = Store(tmp_path)
    with pytest.raises(StoreError):
        async with Session(SPEC, TASK, store=store) as session:
            await session.step(call(("add", "{}")))
            await session.fork(0)
            await session.fork(0)
            await store.aclose()
            await session.step(call(("add", "{}")))
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
