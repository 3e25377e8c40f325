"""Where the groups of a run come from: tasks that are read, or draws of a mixture."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from trajgym.envs import EnvSpec
from trajgym.envs._results import shown
from trajgym.envs.faults import contained, stoppable
from trajgym.rollout._fingerprint import KnownTasks, claim_run
from trajgym.rollout._places import Places
from trajgym.rollout._resume import Earlier, earlier_groups
from trajgym.rollout._sample import group_id
from trajgym.rollout.mixture import Draws, Mixture
from trajgym.rollout.rules import Capacity
from trajgym.trajectory import InvalidInput, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator

    from trajgym.rollout._policy import Policy
    from trajgym.rollout._progress import Progress
    from trajgym.rollout._settings import RunSettings
    from trajgym.trajectory import Store

__all__ = ["GroupSource"]


class GroupSource:
    """Gives the tasks of a run's groups in their order, and what the run has of each group.

    A runner and a fleet take their groups from one: call :meth:`claim` first, then :meth:`read` and
    :meth:`group_of` for each group, :meth:`begin` when it is begun and :meth:`end` when it ends.

    Args:
        spec: the environment, or a mixture of several.
        tasks: the tasks; None for a mixture, which draws its own.
        settings: of the run.

    Raises:
        UnknownEnv: a spec names no environment.
        InvalidInput: there are no tasks and no mixture, an argument has another type, or a rubric
            needs a judge and has none.
    """

    def __init__(
        self,
        spec: EnvSpec | Mixture,
        tasks: Iterable[Task] | AsyncIterator[Task] | None,
        settings: RunSettings,
    ) -> None:
        _check(spec, tasks)
        known = tasks if isinstance(tasks, (list, tuple)) else ()
        self.places = Places(spec, settings, known)
        self.draws: Draws | None = None
        """What a mixture draws; None without one."""
        if tasks is None:
            if not isinstance(spec, Mixture):
                raise InvalidInput("tasks is None; only a Mixture has tasks of its own")
            self.draws = Draws(spec, settings.seed)
        self.capacity = Capacity(settings.admission)
        """How many groups have been begun, and may be."""
        self.begun = 0
        """Number of groups that were begun."""
        self._settings = settings
        self._tasks = _as_async(() if tasks is None else tasks)
        self._checks: KnownTasks | None = None
        self._earlier: dict[str, Earlier] = {}
        self._seen: Counter[str] = Counter()

    @property
    def known(self) -> list[Task]:
        """The tasks that are known before any is read."""
        return [task for place in self.places.all.values() for task in place.tasks]

    async def claim(self, store: Store, policy: Policy, allow_changes: Collection[str]) -> None:
        """Compare the run with what is asked for, and read what it has.

        Raises:
            InvalidInput: the store holds a run with other arguments.
        """
        await claim_run(store, self.places, policy, self._settings, allow_changes)
        self._checks = await asyncio.to_thread(KnownTasks, store, allow_changes)
        for task in self.known:
            self._checks.check(task)
        self._earlier = await asyncio.to_thread(
            earlier_groups,
            store,
            keep_failed=self._settings.keep_failed,
            max_tries=self._settings.max_tries,
        )
        if self.draws is not None:
            await asyncio.to_thread(self._resume, self.draws, store)

    def _resume(self, draws: Draws, store: Store) -> None:
        with store.read_run() as run:
            draws.resume(run)

    def can_read(self, version: int, full: Collection[str]) -> bool:
        """Return whether :meth:`read` has a task now, or knows that there are no more.

        Args:
            version: the trainer's policy version.
            full: names of the parts that have no room for another session.
        """
        draws = self.draws
        if draws is None or draws.over:
            return True
        return self.capacity.admits(version) and draws.can_draw(full)

    async def read(self, full: Collection[str]) -> Task | None:
        """Return the next task; None if there are no more.

        Raises:
            InvalidInput: what the tasks' iterator gives is no task.
        """
        if self.draws is not None:
            return self.draws.draw(full)
        with contained():
            one = anext(self._tasks, None)
            task = await stoppable(one, "the task source", seconds=self.places.cancel_seconds)
        if task is not None:
            _check_task(task)
        return task

    def group_of(self, task: Task) -> tuple[str, Earlier]:
        """Return the id of a task's next group, and what the run has of it.

        Raises:
            InvalidInput: the run holds another task of this id.
        """
        assert self._checks is not None
        self._checks.check(task)
        name = group_id(task, self._seen[task.id])
        self._seen[task.id] += 1
        return name, self._earlier.pop(name, None) or Earlier()

    def begin(self) -> int:
        """Count a group that is begun; return how many were begun before it."""
        self.capacity.begin()
        self.begun += 1
        return self.begun - 1

    async def record(self, store: Store) -> None:
        """Record the last draw of a mixture, after its task and group."""
        if self.draws is not None:
            await store.set_meta(*self.draws.record)

    def note(self, event: Progress) -> None:
        """Count a session that has ended, which a curriculum learns from."""
        if self.draws is not None:
            self.draws.note(event)

    def end(self, group: str, *, accepted: bool) -> None:
        """Count the end of a group that was begun.

        Args:
            group: its id.
            accepted: whether it was sealed with members that count.
        """
        self.capacity.end(accepted=accepted)
        if self.draws is not None:
            self.draws.end(group)


def _check(spec: object, tasks: object) -> None:
    """Check the types of a run's environment and tasks; those of an iterator once they are read.

    Raises:
        InvalidInput: one has another type.
    """
    if not isinstance(spec, EnvSpec | Mixture):
        raise InvalidInput(
            f"the environment is {shown(spec)}; give EnvSpec(id=...), or a Mixture of several"
        )
    if isinstance(tasks, str):
        raise InvalidInput(f"tasks is the text {tasks!r:.100}; read them by load_tasks(...)")
    for task in tasks if isinstance(tasks, list | tuple) else ():
        _check_task(task)


def _check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise InvalidInput(
            f"a task is {shown(task)}; give Task(id=...): load_tasks(...) reads files and dicts"
        )


async def _as_async(tasks: Iterable[Task] | AsyncIterator[Task]) -> AsyncIterator[Task]:
    if hasattr(tasks, "__aiter__"):
        async for task in tasks:
            yield task
        return
    iterator: Iterator[Task] = iter(tasks)
    while (one := await asyncio.to_thread(next, iterator, None)) is not None:
        yield one
