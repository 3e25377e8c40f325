"""Getting a task ready to be started: an image for Docker, folders for the embedded sandbox."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.envs.sandbox import SandboxSpec
from trajgym.envs.swe._layout import BASE_GIT, PYTHON, REPO, RUNNER, environment
from trajgym.envs.swe._record import SweRecord
from trajgym.envs.swe._runner import runner_folder
from trajgym.envs.swe._sources import base_tree

if TYPE_CHECKING:
    from trajgym.envs.sandbox import SandboxProvider
    from trajgym.trajectory import Task

__all__ = ["prepare"]


async def prepare(
    task: Task, provider: SandboxProvider, *, cache_dir: Path | None = None
) -> SandboxSpec:
    """Return what to start for a task; sources and images are made at first use.

    Raises:
        InvalidTask: the task is no SWE task.
        SourceUnavailable: its sources can't be had.
        SandboxError: the image can't be built.
    """
    record = SweRecord.of(task)
    tree = await asyncio.to_thread(base_tree, record, cache_dir)
    runner = await asyncio.to_thread(runner_folder, record.install.needs, cache_dir)
    readonly = {BASE_GIT: tree.git, RUNNER: runner}
    if not Path("/usr/bin/python3").exists():
        readonly[PYTHON] = Path(sys.base_prefix)
    return SandboxSpec(
        trees={REPO: tree.repo}, readonly=readonly, workdir=REPO, env=environment(record)
    )
