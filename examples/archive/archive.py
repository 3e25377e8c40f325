"""An archive of agent programs: records with lineage, and how parents are chosen."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An agent program that was admitted.

    Args:
        id: its number, in the order of admission.
        parent: the member whose code was edited; None for the first one.
        code: the program.
        score: mean score of its attempts.
        solved: tasks that it solved.
        change: description of the edit.
        session: the edit session that made it.
    """

    id: int
    parent: int | None
    code: str
    score: float
    solved: tuple[str, ...]
    change: str = ""
    session: str = ""


class Archive:
    """Members in a JSONL file, and in memory.

    Args:
        path: the file; an existing one is continued.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.members: list[Member] = []
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.members.append(Member(**{**entry, "solved": tuple(entry["solved"])}))

    def admit(self, member: Member) -> None:
        """Add a member."""
        self.members.append(member)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(member)) + "\n")

    def children(self, member: Member) -> int:
        """Return how many members were made from one."""
        return sum(other.parent == member.id for other in self.members)

    def lineage(self, member: Member) -> list[Member]:
        """Return a member and its ancestors, the first one first."""
        found = [member]
        while found[0].parent is not None:
            found.insert(0, self.members[found[0].parent])
        return found

    def weights(self, steepness: float = 10.0, middle: float = 0.5) -> list[float]:
        """Return the weight of each member as a parent.

        A logistic function of the score, times 1 / (1 + children): good members are preferred, and
        those that have been tried less often. This is the rule of the Darwin Gödel Machine
        (arXiv:2505.22954), whose members also stay eligible for ever.
        """
        return [
            1.0 / (1.0 + math.exp(steepness * (middle - one.score))) / (1 + self.children(one))
            for one in self.members
        ]

    def choose(self, chance: random.Random) -> Member:
        """Draw a parent."""
        return chance.choices(self.members, self.weights())[0]

    @property
    def best(self) -> Member:
        """The member with the highest score; the earliest of equals."""
        return max(self.members, key=lambda member: member.score)
