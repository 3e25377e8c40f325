"""What a mixture consists of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajgym.envs import Budgets, EnvSpec
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trajgym.rollout.mixture._curriculum import Curriculum
    from trajgym.trajectory import Task

__all__ = ["Mixture", "Part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One environment of a mixture, with its tasks.

    Args:
        name: recorded with its sessions, as the label ``part``; unique in the mixture.
        spec: the environment.
        tasks: its tasks.
        weight: its groups per group of a part with weight 1, as long as it has tasks and room.
        limit: most sessions of it that run at the same time; None for no limit but the run's.
        samples: sessions per task; None for those of the run.
        budgets: replace those of the run; a mapping works too.

    Raises:
        InvalidInput: a value is out of range, or there is no task.
    """

    name: str
    spec: EnvSpec
    tasks: Sequence[Task]
    weight: float = 1.0
    limit: int | None = None
    samples: int | None = None
    budgets: Budgets | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a part of a mixture has no name")
        where = f"part {self.name!r}"
        weight: Any = self.weight
        known = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not known or not 0 < weight < math.inf:
            raise InvalidInput(f"{where}: weight is {weight!r}; it must be a positive number")
        for name in ("limit", "samples"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInput(f"{where}: {name} is {value!r}; it must be at least 1")
        budgets: Any = self.budgets
        if isinstance(budgets, Mapping):
            object.__setattr__(self, "budgets", Budgets.from_json(dict(budgets)))
        if not self.tasks:
            raise InvalidInput(f"{where}: there is no task")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several environments whose tasks are run together; takes the place of an :class:`EnvSpec`.

    ::

        mixture = Mixture(
            [
                Part(name="swe", spec=EnvSpec(id="swe"), tasks=bugs, weight=2, limit=8),
                Part(name="search", spec=EnvSpec(id="search"), tasks=questions),
            ]
        )
        await collect(mixture, None, policy, "runs/both", samples=8)

    Groups of the parts follow each other in the proportion of the weights, in an order that the
    run's seed decides. Parts without a task left, or whose limit is reached, are left out, and do
    not catch up later.

    Args:
        parts: the environments.
        groups: number of groups after which the run ends; None for no such end.
        repeat: begin a part's tasks again when they have all been drawn. Without it, each task is
            drawn once.
        shuffle: draw each part's tasks in random order, another one each time they are repeated.
        curriculum: draws tasks by their success instead; implies ``repeat``.

    Raises:
        InvalidInput: there is no part, two parts share a name or the id of a task, or ``groups``
            is not positive.
    """

    parts: Sequence[Part]
    groups: int | None = field(default=None, kw_only=True)
    repeat: bool = field(default=False, kw_only=True)
    shuffle: bool = field(default=True, kw_only=True)
    curriculum: Curriculum | None = field(default=None, kw_only=True)
    _part_of: dict[str, Part] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidInput("a mixture needs at least one part")
        if self.groups is not None and self.groups < 1:
            raise InvalidInput(f"groups is {self.groups}; it must be at least 1, or None")
        names = [part.name for part in self.parts]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InvalidInput(f"two parts of the mixture are called {min(twice)!r}")
        for part in self.parts:
            for task in part.tasks:
                other = self._part_of.setdefault(task.id, part)
                if other is not part:
                    raise InvalidInput(
                        f"task {task.id!r} is in the parts {other.name!r} and {part.name!r}: ids "
                        "must differ within a run, as groups are named after them"
                    )

    def part_of(self, task: Task) -> Part:
        """Return the part that a task belongs to.

        Raises:
            InvalidInput: it belongs to none.
        """
        try:
            return self._part_of[task.id]
        except KeyError:
            raise InvalidInput(f"task {task.id!r} is in no part of the mixture") from None
