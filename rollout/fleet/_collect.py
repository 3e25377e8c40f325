"""Collecting a data set in several processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Unpack

from trajgym.rollout._collect import Tally
from trajgym.rollout.fleet._fleet import Fleet

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable

    from trajgym.envs import EnvSpec
    from trajgym.rollout._collect import CollectReport
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._settings import RunKeywords, RunSettings
    from trajgym.rollout.fleet._launcher import Launcher
    from trajgym.rollout.fleet._limits import FleetLimits
    from trajgym.rollout.mixture import Mixture
    from trajgym.trajectory import Task

__all__ = ["collect_in_processes"]


async def collect_in_processes(
    spec: EnvSpec | Mixture,
    tasks: Iterable[Task] | None,
    make_policy: Callable[[], Policy],
    out: str | os.PathLike[str],
    *,
    processes: int = 2,
    settings: RunSettings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[Fleet], None] | None = None,
    allow_changes: Collection[str] = (),
    limits: FleetLimits | None = None,
    launcher: Launcher | None = None,
    **overrides: Unpack[RunKeywords],
) -> CollectReport:
    """Do what :func:`trajgym.rollout.collect` does, in several processes.

    A run can be resumed with another number of processes, and by either function. Sessions whose
    process died are counted in the report as ``interrupted``.

    Args:
        spec: the environment, or a :class:`trajgym.rollout.mixture.Mixture` of several.
        tasks: the tasks; None for a mixture.
        make_policy: see :class:`Fleet`.
        out: run directory, created if missing.
        processes: number of processes.
        settings: how sessions are run; ``concurrency`` is the total.
        on_progress: see :class:`Fleet`.
        on_start: called with the fleet before the first session, to stop it later.
        allow_changes: what may differ from an earlier call on the directory.
        limits: deadlines of the processes.
        launcher: see :class:`Fleet`.
        **overrides: settings by name.

    Raises:
        InvalidInput: see :func:`trajgym.rollout.collect` and :class:`Fleet`.
        StoreLocked: another process collects into the same directory.
        RunIncomplete: a task ends its process each time.
        FleetFailed: the processes can't be started.
    """
    tally = await asyncio.to_thread(Tally, out, on_progress)
    fleet = Fleet(
        spec,
        tasks,
        make_policy,
        out,
        processes=processes,
        settings=settings,
        on_progress=tally.note,
        allow_changes=allow_changes,
        limits=limits,
        launcher=launcher,
        **overrides,
    )
    if on_start is not None:
        on_start(fleet)
    async with fleet:
        await fleet.drain()
    return await asyncio.to_thread(tally.report)
