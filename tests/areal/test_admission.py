"""The admission rule against AReaL's own staleness manager."""

from __future__ import annotations

import asyncio
import importlib
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_runner import SPEC, Adder, tasks
from trajgym.rollout import Progress, Runner
from trajgym.rollout.rules import Admission, Capacity
from trajgym.trajectory import Store

areal = importlib.import_module("areal.infra.staleness_manager")

RULES = st.builds(
    Admission,
    batch=st.integers(1, 6),
    staleness=st.integers(0, 8),
    running=st.integers(1, 12),
)


class Version:
    """The version that AReaL's manager asks for."""

    def __init__(self) -> None:
        self.now = 0

    def get_version(self) -> int:
        return self.now


def manager_of(rule: Admission, version: Version) -> Any:
    """Return AReaL's manager of the same rule."""
    assert rule.running is not None
    return areal.StalenessManager(version, rule.running, rule.batch, rule.staleness)


@settings(max_examples=300, deadline=None)
@given(
    rule=RULES,
    events=st.lists(
        st.sampled_from(["begin", "accepted", "rejected", "version"])
        | st.integers(0, 40).map(lambda v: f"recover {v}"),
        max_size=120,
    ),
    obeying=st.booleans(),
)
def test_the_capacity_is_that_of_areal(
    rule: Admission, events: list[str], *, obeying: bool
) -> None:
    """After every event of any sequence both leave the same room, also when it was exceeded."""
    version = Version()
    theirs, ours = manager_of(rule, version), Capacity(rule)
    for event in events:
        if event == "begin" and (not obeying or ours.admits(version.now)):
            theirs.on_rollout_enqueued()
            theirs.on_rollout_submitted()
            ours.begin()
        elif event in {"accepted", "rejected"} and ours.running:
            accepted = event == "accepted"
            (theirs.on_rollout_accepted if accepted else theirs.on_rollout_rejected)()
            ours.end(accepted=accepted)
        elif event == "version":
            version.now += 1
        elif event.startswith("recover"):
            version.now = max(version.now, int(event.split()[1]))
            theirs.on_version_recovered(version.now)
            ours.recover(version.now)
        assert ours.left(version.now) == theirs.get_capacity()
        stat = theirs.get_stats()
        assert (ours.running, ours.accepted, ours.rejected) == (
            stat.running,
            stat.accepted,
            stat.rejected,
        )


@settings(max_examples=20, deadline=None)
@given(rule=RULES, seed=st.integers(0, 2**32), first=st.integers(0, 5))
def test_a_runner_begins_what_areal_would(rule: Admission, seed: int, first: int) -> None:
    """Beside a whole run with failures, AReaL's manager admits each group, and none more."""
    chance = random.Random(seed)
    version = Version()
    manager = manager_of(rule, version)
    faults = {f"t{i}": KeyError("bug") for i in range(200) if chance.random() < 0.3}

    def note(event: Progress) -> None:
        if event.kind == "began":
            assert manager.get_capacity() > 0
            manager.on_rollout_enqueued()
            manager.on_rollout_submitted()
        elif event.kind == "sealed":
            failed = event.task in faults
            (manager.on_rollout_rejected if failed else manager.on_rollout_accepted)()

    async def train(folder: str) -> None:
        version.now = first
        manager.on_version_recovered(first)
        async with Store(Path(folder)) as store:
            runner = Runner(
                SPEC,
                tasks(200),
                Adder(faults),
                store=store,
                concurrency=16,
                admission=rule,
                on_progress=note,
            )
            runner.set_version(first)
            async with runner:
                for step in range(3):
                    used = 0
                    while used < rule.batch:
                        used += bool((await anext(runner)).sessions)
                    # The trainer is busy now; the runner uses all the room that AReaL leaves.
                    async with asyncio.timeout(240):
                        while manager.get_capacity() > 0:
                            await asyncio.sleep(0)
                    version.now = first + step + 1
                    runner.set_version(version.now)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(train(folder))
