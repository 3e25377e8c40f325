"""Failures while something is closed, or after it has ended: none hides another, none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import Counter, call
from trajgym.envs import EnvSpec, Session
from trajgym.trajectory import Store, StoreError, Task

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
