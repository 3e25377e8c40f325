"""Collecting a data set: tasks and a policy in, a run on disk out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.rollout._runner import Progress, Runner
from trajgym.trajectory import InvalidInput, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from trajgym.envs import EnvSpec
    from trajgym.rollout._policy import Policy
    from trajgym.trajectory import Task

__all__ = ["CollectReport", "collect"]

_META = "env"


@dataclass(slots=True)
class CollectReport:
    """What one call of :func:`collect` did; earlier calls on the same run are not counted.

    Args:
        statuses: sessions by how they ended.
        solved: sessions whose score is at least 1.
        groups: groups sealed.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    solved: int = 0
    groups: int = 0

    @property
    def sessions(self) -> int:
        """Sessions run."""
        return self.statuses.total()


async def collect(
    spec: EnvSpec,
    tasks: Iterable[Task],
    policy: Policy,
    out: str | os.PathLike[str],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[Runner], None] | None = None,
    **settings: Any,
) -> CollectReport:
    """Run every task ``samples`` times and record it all under ``out``.

    Calling it again on the same directory resumes: finished sessions are not run again. Cancelling
    closes every session cleanly; they are recorded as cancelled and run again on resume.

    Args:
        spec: the environment.
        tasks: the tasks.
        policy: who speaks; not closed here.
        out: run directory, created if missing.
        on_progress: called for every event.
        on_start: gets the runner before the first session, to pause or stop it from outside.
        settings: of :class:`Runner`: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        InvalidInput: the directory holds a run of another environment.
        StoreLocked: another process collects into the same directory.
    """
    report = CollectReport()

    def note(event: Progress) -> None:
        if event.kind == "ended":
            report.statuses[event.status] += 1
            report.solved += event.score is not None and event.score >= 1.0
        elif event.kind == "sealed":
            report.groups += 1
        if on_progress is not None:
            on_progress(event)

    async with Store(out) as store:
        await _claim(store, spec)
        runner = Runner(spec, tasks, policy, store=store, on_progress=note, **settings)
        if on_start is not None:
            on_start(runner)
        async with runner:
            async for _ in runner:
                pass
    return report


async def _claim(store: Store, spec: EnvSpec) -> None:
    """Write which environment this run is of, or refuse to mix two in one run."""
    wanted = json.dumps(spec.to_json(), sort_keys=True)
    with store.read() as run:
        found = run.meta().get(_META)
    if found is not None and found != wanted:
        raise InvalidInput(
            f"{store.path.parent}: this run was collected with environment {found}, not {wanted}; "
            "use another directory",
        )
    await store.set_meta(_META, wanted)
