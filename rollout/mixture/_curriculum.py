"""Curricula: drawing tasks by how often they were solved."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

__all__ = ["Curriculum", "Result", "TaskPool", "TaskRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """Draws the tasks of a part by their success rate.

    Tasks without a result are drawn first, in the part's order. Then each task is drawn with a
    probability proportional to ``p (1 - p)``, the variance of its outcome, which is largest for
    tasks that are solved half of the time; ``p`` is ``(solved + 1) / (sessions + 2)`` over its last
    ``window`` groups. A task whose last ``aside_after`` groups were solved always or never, is set
    aside. It is revisited after ``revisit`` further draws of its part; if the group has both
    outcomes, it is drawn like others again, else it is set aside again, for twice as long, up to
    eight times ``revisit``.

    Args:
        aside_after: groups without a difference after which a task is set aside.
        revisit: draws of the part for which it is.
        window: groups that a success rate is taken over.
        solved: least score of a solved session.
        lag: a draw knows the results of the draws that are at least so many earlier, and waits for
            them: draws then depend on results but not on the times at which they come, and are the
            same in every run of the same seed. None uses each result as soon as it is known.

    Raises:
        InvalidInput: a value is out of range.
    """

    aside_after: int = 1
    revisit: int = 100
    window: int = 4
    solved: float = 1.0
    lag: int | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "solved" or (value is None and one.name == "lag"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInput(f"curriculum {one.name} is {value!r}; it must be at least 1")
        if self.aside_after > self.window:
            raise InvalidInput(
                f"curriculum aside_after is {self.aside_after}, of a window of {self.window} groups"
            )


class Result(NamedTuple):
    """The scored sessions of a group."""

    sessions: int
    solved: int


@dataclass(slots=True)
class TaskRecord:
    """What a curriculum knows of a task.

    Args:
        groups: its last groups.
        aside_until: draw of the part until which it is set aside; 0 if it is not.
        times_aside: how often it was set aside in a row.
    """

    groups: deque[Result]
    aside_until: int = 0
    times_aside: int = 0

    @property
    def rate(self) -> float:
        """The success rate, with one success and one failure added."""
        sessions = sum(result.sessions for result in self.groups)
        return (sum(result.solved for result in self.groups) + 1) / (sessions + 2)

    def add(self, result: Result, draw: int, rule: Curriculum) -> None:
        """Add a group's result, and set the task aside or take it back.

        Args:
            result: the result; without a scored session it is ignored.
            draw: number of draws of the part so far.
            rule: the curriculum.
        """
        if not result.sessions:
            return
        self.groups.append(result)
        last = list(self.groups)[-rule.aside_after :]
        sessions, solved = (sum(column) for column in zip(*last, strict=True))
        if len(last) == rule.aside_after and solved in (0, sessions):
            self.aside_until = draw + rule.revisit * min(2**self.times_aside, 8)
            self.times_aside += 1
        else:
            self.aside_until = self.times_aside = 0


@dataclass(slots=True)
class TaskPool:
    """The tasks of a part, by what is known of them.

    Args:
        names: ids of the tasks, in the order in which they are drawn first.
        rule: the curriculum.
    """

    names: Sequence[str]
    rule: Curriculum
    records: dict[str, TaskRecord] = field(default_factory=dict)
    drawn: int = 0
    """Number of draws so far."""
    _untried: deque[str] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._untried.extend(self.names)

    def add(self, name: str, result: Result) -> None:
        """Add a group's result."""
        record = self.records.setdefault(name, TaskRecord(deque(maxlen=self.rule.window)))
        record.add(result, self.drawn, self.rule)

    def took(self, name: str) -> None:
        """Count a draw that was made earlier."""
        self.drawn += 1
        if name in self._untried:
            self._untried.remove(name)

    @property
    def aside(self) -> list[str]:
        """The tasks that are set aside, and not to be revisited yet."""
        return [name for name in self.names if self._is_aside(name)]

    def draw(self, rng: random.Random, running: Collection[str]) -> str:
        """Return the id of the next task.

        Tasks that have a group in progress are drawn only if there is no other. If all tasks are
        set aside, the one that is to be revisited first is drawn.

        Args:
            rng: decides.
            running: ids of tasks that have a group in progress.
        """
        name = self._chosen(rng, running)
        self.drawn += 1
        return name

    def _chosen(self, rng: random.Random, running: Collection[str]) -> str:
        if self._untried:
            return self._untried.popleft()
        for names in ([n for n in self.names if n not in running], self.names):
            due = [n for n in names if self._until(n) and not self._is_aside(n)]
            if due:  # revisited before others, the longest overdue first
                return min(due, key=self._until)
            free = [n for n in names if not self._until(n)]
            if free:
                return rng.choices(free, [self._weight(n) for n in free])[0]
        return min(self.names, key=self._until)

    def _until(self, name: str) -> int:
        record = self.records.get(name)
        return 0 if record is None else record.aside_until

    def _is_aside(self, name: str) -> bool:
        return self._until(name) > self.drawn

    def _weight(self, name: str) -> float:
        record = self.records.get(name)
        rate = 0.5 if record is None else record.rate
        return rate * (1 - rate)
