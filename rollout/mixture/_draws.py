"""The sequence of tasks that a mixture's runner is given."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trajgym.rollout._drive import derive_seed
from trajgym.rollout._sample import group_id
from trajgym.rollout.mixture._curriculum import Curriculum, Result, TaskPool

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trajgym.rollout._progress import Progress
    from trajgym.rollout.mixture._mixture import Mixture, Part
    from trajgym.trajectory import Run, Task

__all__ = ["Draws", "PartCounts", "drawn_groups"]

_RECORD = "draws/"
"""Prefix of the metadata that have the ids of the drawn groups."""
_CHUNK = 256
"""Number of ids under one key, which are written again with each of them."""


@dataclass(slots=True)
class PartCounts:
    """What has become of a part's groups so far, including those of earlier calls.

    Args:
        drawn: groups that were drawn.
        ended: groups that have ended.
        sessions: scored sessions.
        solved: those of them that were solved.
        aside: tasks that a curriculum has set aside.
    """

    drawn: int = 0
    ended: int = 0
    sessions: int = 0
    solved: int = 0
    aside: int = 0


@dataclass(slots=True, eq=False)
class _Draw:
    """A group that was drawn."""

    part: _Stream
    task: str
    sessions: int = 0
    solved: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Stream:
    """The tasks of a part that are yet to be drawn."""

    part: Part
    tasks: dict[str, Task]
    pool: TaskPool | None
    at: float = 0.0
    """Virtual time of its next draw, in groups of weight 1."""
    held: bool = False
    """Whether it had no room at the last draw."""
    left: deque[str] = field(default_factory=deque)
    rounds: int = 0
    drawn: int = 0


class Draws:
    """Draws the tasks of a mixture; used by one runner or fleet.

    Args:
        mixture: the mixture.
        seed: decides the order.
    """

    def __init__(self, mixture: Mixture, seed: int) -> None:
        self.mixture = mixture
        self._seed = seed
        self._lag = None if mixture.curriculum is None else mixture.curriculum.lag
        self._solved = (mixture.curriculum or Curriculum()).solved
        self._clock = 0.0
        self._seen: Counter[str] = Counter()
        self._draws: list[_Draw] = []
        self._log: list[str] = []
        self._applied = 0
        """Draws whose results the curriculum knows, with a lag."""
        self._groups: dict[str, _Draw] = {}
        self._running: Counter[str] = Counter()
        self._again: deque[Task] = deque()
        self._streams = {part.name: self._stream(part) for part in mixture.parts}

    def _stream(self, part: Part) -> _Stream:
        tasks = {task.id: task for task in part.tasks}
        rule = self.mixture.curriculum
        pool = None if rule is None else TaskPool(self._order(part, 0), rule)
        return _Stream(part, tasks, pool, at=1.0 / part.weight)

    def _order(self, part: Part, round_: int) -> list[str]:
        names = list(dict.fromkeys(task.id for task in part.tasks))
        if self.mixture.shuffle:
            self._rng(f"{part.name}/{round_}").shuffle(names)
        return names

    def _rng(self, name: str) -> random.Random:
        return random.Random(derive_seed(self._seed, name))  # noqa: S311 - not a secret

    # Earlier calls ------------------------------------------------------------------------

    def resume(self, run: Run) -> None:
        """Continue after the groups that a run has; they are drawn again first. Blocks.

        The runner skips those that are finished, and runs what others lack.

        Args:
            run: the run; groups of tasks that the mixture lacks are ignored.
        """
        results: dict[str, list[int]] = {}
        for summary in run.summaries():
            outcome = summary.attempts[0].outcome
            if summary.record.group is not None and outcome is not None:
                counts = results.setdefault(summary.record.group, [0, 0])
                counts[0] += 1
                counts[1] += outcome.score >= self._solved
        known = {name: stream for stream in self._streams.values() for name in stream.tasks}
        groups = {group.id: group for group in run.groups()}
        for name in drawn_groups(run.meta()):
            group = groups.get(name)
            stream = None if group is None else known.get(group.task)
            if stream is None or group is None:
                continue
            if stream.pool is not None:
                self._apply(len(self._draws))
                stream.pool.took(group.task)
            else:
                self._refill(stream)
                if group.task in stream.left:
                    stream.left.remove(group.task)
            task = stream.tasks[group.task]
            draw = self._drew(stream, task)
            self._again.append(task)
            if group.sealed:
                draw.sessions, draw.solved = results.get(group.id, (0, 0))
                self.end(group.id)

    # Drawing ------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether there will be no further task."""
        if self._again:
            return False
        most = self.mixture.groups
        return (most is not None and len(self._draws) >= most) or not any(
            map(self._has_tasks, self._streams.values())
        )

    def can_draw(self, full: Collection[str]) -> bool:
        """Return whether :meth:`draw` returns a task now.

        Args:
            full: names of the parts that have no room for another session.
        """
        if self._again:
            return True
        if self._lag is not None:
            due = max(0, len(self._draws) + 1 - self._lag)
            if not all(draw.ended for draw in self._draws[self._applied : due]):
                return False
        return not self.over and any(
            stream.part.name not in full and self._has_tasks(stream)
            for stream in self._streams.values()
        )

    def draw(self, full: Collection[str] = ()) -> Task | None:
        """Return the next task; None if :meth:`can_draw` is False.

        Args:
            full: names of the parts that have no room for another session.
        """
        if self._again:
            return self._again.popleft()
        if not self.can_draw(full):
            return None
        self._apply(len(self._draws))
        ready: list[_Stream] = []
        for stream in self._streams.values():
            if stream.part.name in full:
                stream.held = True
            elif self._has_tasks(stream):
                if stream.held:  # it does not catch up for the time in which it had no room
                    stream.at, stream.held = max(stream.at, self._clock), False
                ready.append(stream)
        stream = min(ready, key=lambda one: one.at)
        task = stream.tasks[self._next_of(stream)]
        self._drew(stream, task)
        return task

    @property
    def record(self) -> tuple[str, str]:
        """Key and value of the run's metadata that record the last draw."""
        chunk = (len(self._log) - 1) // _CHUNK
        return f"{_RECORD}{chunk}", json.dumps(self._log[chunk * _CHUNK :])

    def _has_tasks(self, stream: _Stream) -> bool:
        repeats = self.mixture.repeat or stream.pool is not None
        return repeats or not stream.rounds or bool(stream.left)

    def _next_of(self, stream: _Stream) -> str:
        if stream.pool is not None:
            rng = self._rng(f"{stream.part.name}/draw/{stream.drawn}")
            running: Collection[str] = self._running
            if self._lag is not None:  # as if no group ended before its result is known
                running = {draw.task for draw in self._draws[self._applied :]}
            return stream.pool.draw(rng, running)
        self._refill(stream)
        return stream.left.popleft()

    def _refill(self, stream: _Stream) -> None:
        if not stream.left:
            stream.left.extend(self._order(stream.part, stream.rounds))
            stream.rounds += 1

    def _drew(self, stream: _Stream, task: Task) -> _Draw:
        draw = _Draw(stream, task.id)
        name = group_id(task, self._seen[task.id])
        self._seen[task.id] += 1
        self._draws.append(draw)
        self._log.append(name)
        self._groups[name] = draw
        self._running[task.id] += 1
        stream.drawn += 1
        self._clock = stream.at
        stream.at += 1.0 / stream.part.weight
        return draw

    # Results ------------------------------------------------------------------------------

    def note(self, event: Progress) -> None:
        """Count a session that has ended; other events are ignored."""
        draw = self._groups.get(event.session.partition("-")[0])
        if event.kind == "ended" and event.score is not None and draw is not None:
            draw.sessions += 1
            draw.solved += event.score >= self._solved

    def end(self, group: str) -> None:
        """Count a group that has ended, by its id."""
        draw = self._groups.get(group)
        if draw is None or draw.ended:
            return
        draw.ended = True
        self._running[draw.task] -= 1
        if not self._running[draw.task]:
            del self._running[draw.task]
        if self._lag is None:
            self._learn(draw)

    def _apply(self, next_draw: int) -> None:
        """Let the curriculum know the results that the next draw is to know."""
        if self._lag is None:
            return
        while self._applied <= next_draw - self._lag:
            self._learn(self._draws[self._applied])
            self._applied += 1

    def _learn(self, draw: _Draw) -> None:
        if draw.part.pool is not None:
            draw.part.pool.add(draw.task, Result(draw.sessions, draw.solved))

    @property
    def counts(self) -> dict[str, PartCounts]:
        """What has become of the groups so far, by part."""
        found = {name: PartCounts() for name in self._streams}
        for draw in self._draws:
            counts = found[draw.part.part.name]
            counts.drawn += 1
            counts.ended += draw.ended
            counts.sessions += draw.sessions
            counts.solved += draw.solved
        for name, stream in self._streams.items():
            found[name].aside = 0 if stream.pool is None else len(stream.pool.aside)
        return found


def drawn_groups(meta: Mapping[str, str]) -> list[str]:
    """Return the ids of the groups that were drawn for a run, in their order.

    Args:
        meta: the run's metadata.
    """
    keys = [key for key in meta if key.startswith(_RECORD)]
    keys.sort(key=lambda key: int(key.removeprefix(_RECORD)))
    return list(dict.fromkeys(name for key in keys for name in json.loads(meta[key])))
