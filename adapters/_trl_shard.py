"""One of several workers that share the tasks, the sessions at once, and the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["Shard"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of how many workers this is.

    Args:
        index: from 0.
        count: of workers.
    """

    index: int
    count: int

    def tasks(self, tasks: Sequence[_T]) -> Sequence[_T]:
        """Return this worker's tasks: no two workers play the same one, so groups stay whole.

        Raises:
            InvalidInput: there are fewer tasks than workers.
        """
        if len(tasks) < self.count:
            raise InvalidInput(f"{len(tasks)} tasks can't be shared by {self.count} processes")
        return tasks[self.index :: self.count]

    def part(self, n: int) -> int:
        """Return this worker's part of ``n`` things, at least 1; the parts of all make up ``n``."""
        return max(1, n // self.count + (self.index < n % self.count))

    def store(self, run: str | os.PathLike[str]) -> Path:
        """Return this worker's file in a run directory; read together, the files are one run."""
        return Path(run) / f"worker-{self.index}.sqlite"
