"""Scoring a recorded run again with a rubric."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from trajgym.envs import EnvSpec
from trajgym.envs.faults import contained, describe
from trajgym.envs.rubrics import Case
from trajgym.trajectory import InvalidInput, Run, Store

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from trajgym.envs.rubrics import Rubric
    from trajgym.trajectory import Outcome, SessionTree, Task

__all__ = ["RescoreReport", "Rescored", "rescore"]


class Rescored(NamedTuple):
    """An attempt that has just been scored again; for progress bars and listings."""

    session: str
    attempt: int
    before: Outcome
    """The recorded outcome, which is not changed."""
    after: Outcome | None
    """The new one; None if it could not be scored."""
    cause: str
    """Why it could not be scored; empty otherwise."""


@dataclass(slots=True)
class RescoreReport:
    """The result of a call of :func:`rescore`.

    Args:
        name: name under which the outcomes are stored.
        rescored: attempts with a new outcome.
        changed: those whose score or verdict differs from the recorded one.
        passed_before: how many of them had passed.
        passed: how many pass now.
        before: their recorded scores.
        after: their new scores.
        failed: attempts that could not be scored, by cause; no outcome is stored for them.
    """

    name: str
    rescored: int = 0
    changed: int = 0
    passed_before: int = 0
    passed: int = 0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def means(self) -> tuple[float, float] | None:
        """The mean score before and now; None if nothing was scored."""
        return (fmean(self.before), fmean(self.after)) if self.after else None

    def add(self, one: Rescored) -> None:
        """Count an attempt."""
        if one.after is None:
            self.failed[one.cause] += 1
            return
        self.rescored += 1
        self.before.append(one.before.score)
        self.after.append(one.after.score)
        self.passed_before += one.before.passed
        self.passed += one.after.passed
        same = (one.before.score, one.before.passed) == (one.after.score, one.after.passed)
        self.changed += not same


def rescore(
    path: str | os.PathLike[str],
    rubric: Rubric | None = None,
    *,
    name: str | None = None,
    on_progress: Callable[[Rescored], None] | None = None,
) -> RescoreReport:
    """Score every scored attempt of a run again and store the outcomes in addition to the recorded.

    The recorded outcomes are not changed; ``Run(path, outcomes=name)`` returns the new ones in
    their place. Attempts without a recorded outcome, such as failed ones, are skipped. The call
    blocks; its use of memory does not depend on the size of the run.

    Args:
        path: a run that no other process is writing to.
        rubric: the rubric; that of each session's environment if None.
        name: name of the outcomes; the rubric's name if None.
        on_progress: called for every attempt.

    Raises:
        InvalidInput: no rubric is given and the environment has none, or a session's record of its
            environment is malformed.
        StoreLocked: another process is writing to the run.
    """
    with Run(path) as run:
        files = run.files
        tasks = {task.id: task for task in run.tasks()}
    report = RescoreReport(name or (rubric.name if rubric is not None else ""))
    note = on_progress or (lambda _: None)
    own = _OwnRubrics()
    for file in files:
        with Store(file) as store, store.read() as run:
            for tree in run.sessions():
                used = rubric or own.of(tree)
                report.name = report.name or used.name
                found: dict[int, Outcome] = {}
                for one in _session(tree, used, tasks):
                    report.add(one)
                    note(one)
                    if one.after is not None:
                        found[one.attempt] = one.after
                if found:
                    store.put_outcomes(tree.record.id, report.name, found).wait()
    return report


def _session(tree: SessionTree, rubric: Rubric, tasks: Mapping[str, Task]) -> list[Rescored]:
    found = []
    for attempt in tree.attempts:
        before = attempt.outcome
        if before is None:
            continue
        after, cause = None, ""
        try:
            task = tasks.get(tree.record.task)
            if task is None:
                raise InvalidInput(f"the run has no task {tree.record.task!r}")
            with contained():
                after = rubric.outcome(Case.recorded(task, tree, attempt))
        except Exception as error:  # noqa: BLE001 - boundary: an author's rubric
            cause = describe(error)
        found.append(Rescored(tree.record.id, attempt.index, before, after, cause))
    return found


class _OwnRubrics:
    """The rubrics of environments; each environment is looked up once."""

    def __init__(self) -> None:
        self._known: dict[str, Rubric] = {}

    def of(self, tree: SessionTree) -> Rubric:
        """Return the rubric of a session's environment.

        Raises:
            InvalidInput: the environment has no rubric or can't be found, or its record is
                malformed.
        """
        key = json.dumps(tree.record.env, sort_keys=True)
        if key not in self._known:
            spec = EnvSpec.from_json(tree.record.env, f"session {tree.record.id}: its environment")
            rubric = spec.resolve().rubric
            if rubric is None:
                raise InvalidInput(
                    f"environment {spec.id!r} has no rubric; specify one "
                    "(trajgym rescore RUN --rubric package.module:rubric)",
                )
            self._known[key] = rubric
        return self._known[key]
