"""The share of one of several workers in the tasks, the concurrency and the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trajgym.rollout.mixture import Mixture
from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from trajgym.envs import EnvSpec

__all__ = ["Shard"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Shard:
    """Index of a worker among several.

    Args:
        index: from 0.
        count: number of workers.
    """

    index: int
    count: int

    @classmethod
    def current(cls) -> Shard:
        """Return that of the worker whose process this is; the whole in any other process."""
        return _current

    def enter(self) -> None:
        """Make it the current one of this process; called by the worker."""
        global _current
        _current = self

    def tasks(self, tasks: Sequence[_T]) -> Sequence[_T]:
        """Return this worker's tasks; each task belongs to one worker, so groups stay whole.

        Raises:
            InvalidInput: there are fewer tasks than workers.
        """
        if len(tasks) < self.count:
            raise InvalidInput(f"{len(tasks)} tasks are too few for {self.count} processes")
        return tasks[self.index :: self.count]

    def part(self, n: int) -> int:
        """Return this worker's share of ``n``, at least 1; the shares add up to ``n``."""
        return max(1, n // self.count + (self.index < n % self.count))

    def environments(self, spec: EnvSpec | Mixture) -> EnvSpec | Mixture:
        """Return the environments with this worker's share of their limits."""
        if not isinstance(spec, Mixture):
            return spec
        parts = [
            part if part.limit is None else replace(part, limit=self.part(part.limit))
            for part in spec.parts
        ]
        return replace(spec, parts=parts)

    def store(self, run: str | os.PathLike[str]) -> Path:
        """Return the path of this worker's file in a run directory; all files form one run."""
        return Path(run) / f"worker-{self.index}.sqlite"


_current = Shard(0, 1)
