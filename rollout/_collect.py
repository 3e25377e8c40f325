"""Collecting a data set: runs tasks with a policy and records a run on disk."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from trajgym.rollout._resume import without_writers
from trajgym.rollout._runner import Runner
from trajgym.rollout._settings import RunSettings
from trajgym.trajectory import Run, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable

    from trajgym.envs import EnvSpec
    from trajgym.rollout._policy import Policy
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._settings import RunKeywords
    from trajgym.rollout.mixture import Mixture
    from trajgym.trajectory import Task

__all__ = ["CollectReport", "Tally", "collect"]

_VARYING = re.compile(r"\b(?:0x)?[0-9a-f]{6,}\b|\d+(?:\.\d+)?")
"""Ids, ports and times, which differ between failures with the same cause."""
_CAUSE_LENGTH = 300
_WRITERS_SECONDS = 180.0
"""How long the processes of a fleet that was killed may take to close their sessions."""


@dataclass(slots=True)
class CollectReport:
    """The result of one call of :func:`collect`; earlier calls on the same run are not counted.

    Args:
        statuses: number of sessions by status.
        solved: number of sessions whose score is at least 1.
        groups: number of groups sealed.
        again: number of sessions of samples that had failed in an earlier call.
        failed_tasks: tasks of the run with failed sessions and, including earlier calls, without a
            scored one.
        causes: number of those failures by ``<status>: <cause>``, ignoring numbers and ids.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    solved: int = 0
    groups: int = 0
    again: int = 0
    failed_tasks: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def sessions(self) -> int:
        """Sessions run."""
        return self.statuses.total()


async def collect(
    spec: EnvSpec | Mixture,
    tasks: Iterable[Task] | None,
    policy: Policy,
    out: str | os.PathLike[str],
    *,
    settings: RunSettings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[Runner], None] | None = None,
    allow_changes: Collection[str] = (),
    **overrides: Unpack[RunKeywords],
) -> CollectReport:
    """Run every task ``samples`` times and record the sessions under ``out``.

    Calling it again on the same directory resumes: finished sessions are not run again; failed ones
    are, unless ``keep_failed`` is set. The arguments are recorded with the run, and a call with
    other tasks under the same ids, budgets, policy, seed or expansion is refused. Cancelling closes
    all sessions; they are recorded as cancelled and run again on resume.

    Args:
        spec: the environment, or a :class:`trajgym.rollout.mixture.Mixture` of several.
        tasks: the tasks; None for a mixture.
        policy: gives the assistant messages; not closed by this function.
        out: run directory, created if missing.
        settings: how sessions are run.
        on_progress: called for every event.
        on_start: called with the runner before the first session, to pause or stop it later.
        allow_changes: what may differ from an earlier call on the directory: ``tasks``,
            ``budgets``, ``policy``, ``seed``, ``expansion``.
        **overrides: settings by name: ``samples``, ``concurrency``, ``budgets``, ``retries``, ...

    Raises:
        InvalidInput: a setting does not exist or is invalid, the environment's rubric needs a judge
            and has none, or the directory contains a run of another environment or with other
            arguments.
        StoreLocked: another process collects into the same directory.
    """
    settings = RunSettings.of(settings, overrides)
    async with Store(out) as store:
        await without_writers(store, _WRITERS_SECONDS)
        tally = await asyncio.to_thread(Tally, out, on_progress)
        runner = Runner(
            spec,
            tasks,
            policy,
            store=store,
            settings=settings,
            on_progress=tally.note,
            allow_changes=allow_changes,
        )
        if on_start is not None:
            on_start(runner)
        async with runner:
            async for _ in runner:
                pass
        return await asyncio.to_thread(tally.report)


class Tally:
    """Counts the events of a collection. Reading the run blocks.

    Args:
        out: the run directory; it need not exist.
        on_progress: called with each event.
    """

    def __init__(
        self, out: str | os.PathLike[str], on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._out = Path(out)
        self._report = CollectReport()
        self._failed = _failed_samples(self._out)
        self._on_progress = on_progress

    def note(self, event: Progress) -> None:
        """Count an event."""
        report = self._report
        if event.kind == "ended":
            report.statuses[event.status] += 1
            report.again += event.session.partition(".")[0] in self._failed
            report.solved += event.score is not None and event.score >= 1.0
        elif event.kind == "sealed":
            report.groups += 1
        if self._on_progress is not None:
            self._on_progress(event)

    def report(self) -> CollectReport:
        """Return the report of a collection that has ended."""
        _note_failures(self._out, self._report)
        return self._report


def _failed_samples(out: Path) -> set[str]:
    """Return the names of samples whose last session failed."""
    last: dict[str, bool] = {}
    if not any(out.glob("*.sqlite")):
        return set()
    with Run(out) as run:
        for summary in run.summaries():
            name = summary.record.id.partition(".")[0]
            last[name] = summary.attempts[0].status.kind == "failed"
    return {name for name, failed in last.items() if failed}


def _note_failures(out: Path, report: CollectReport) -> None:
    """Find the tasks all of whose sessions failed, and count the causes."""
    causes: dict[str, Counter[str]] = {}
    scored: set[str] = set()
    with Run(out) as run:
        for summary in run.summaries():
            task, first = summary.record.task, summary.attempts[0]
            if first.status.scored:
                scored.add(task)
                causes.pop(task, None)
            elif first.status.kind == "failed" and task not in scored:
                causes.setdefault(task, Counter())[f"{first.status}: {first.cause}"] += 1
    report.failed_tasks = list(causes)
    examples: dict[str, str] = {}
    for found in causes.values():
        for cause, count in found.items():
            kind = _VARYING.sub("#", cause)
            report.causes[examples.setdefault(kind, cause[:_CAUSE_LENGTH])] += count
