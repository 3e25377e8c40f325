"""A fleet inside the Ray cluster that verl started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rollout.fleet import SPEC, contents, policy, tasks
from trajgym.rollout.fleet import Fleet
from trajgym.rollout.fleet.ray import RayLauncher

if TYPE_CHECKING:
    from pathlib import Path


async def test_it_uses_the_cluster_that_is_there(chain: Any, tmp_path: Path) -> None:
    """In the process that started verl's chain, sessions run in actors beside its workers."""
    del chain
    import ray

    fleet = Fleet(SPEC, tasks(4), policy, tmp_path, processes=1, launcher=RayLauncher())
    async with fleet:
        assert len([group async for group in fleet]) == 4
    assert len(contents(tmp_path)) == 4
    assert ray.is_initialized()  # the fleet did not start it, so it does not end it
