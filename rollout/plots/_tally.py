"""Counts over a run, from which its plots are made; one session is in memory at a time."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trajgym.trajectory import Attempt, SessionTree, Turn

__all__ = ["BIN", "Endings", "Sums", "Tally", "Values"]

BIN = 0.01
"""Width of the bins in which derived values are counted."""
_LARGEST = 1_000.0
"""Derived values beyond are counted at this bound."""
_CAUSES = 200
"""Most different causes of failures that are counted by name."""
_CAUSE = 80
"""Longest name of a cause (characters)."""


@dataclass(slots=True)
class Sums:
    """Count, sum and sum of squares of values by position."""

    count: list[int] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)

    def add(self, position: int, value: float) -> None:
        """Add a value at a position from 0."""
        while len(self.count) <= position:
            self.count.append(0)
            self.total.append(0.0)
            self.squares.append(0.0)
        self.count[position] += 1
        self.total[position] += value
        self.squares[position] += value * value


class Values(NamedTuple):
    """The values of one deriver for the turns of a session."""

    kind: str
    """``rewards`` or ``advantages``."""
    turns: Sequence[float]


@dataclass(slots=True)
class Endings:
    """When things ended: a time and a code each, 12 bytes per entry."""

    names: dict[str, int] = field(default_factory=dict)
    times: array[float] = field(default_factory=lambda: array("d"))
    codes: array[int] = field(default_factory=lambda: array("i"))

    def add(self, name: str, at: float) -> None:
        """Add an entry; after many different names, further ones count as ``other``."""
        if name not in self.names and len(self.names) >= _CAUSES:
            name = "other"
        self.codes.append(self.names.setdefault(name, len(self.names)))
        self.times.append(at)


@dataclass(slots=True)
class Tally:
    """Everything that the plots of a run need."""

    sessions: int = 0
    first_time: float = math.inf
    """Earliest time at which a session was created."""
    solved_at: Counter[int] = field(default_factory=Counter)
    """Scored attempts that passed, by number of turns."""
    unsolved_at: Counter[int] = field(default_factory=Counter)
    """Scored attempts that did not pass, by number of turns."""
    tokens: dict[bool, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Scored attempts by whether they passed and by ``ceil(4 log2(completion tokens))``."""
    rewards: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    """Rewards by source and by turn of the attempt."""
    advantages: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Turns with an advantage by deriver and by ``floor(value / BIN)``."""
    tools: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Tool calls by name and by status."""
    tasks: dict[str, list[int]] = field(default_factory=dict)
    """Scored and passed attempts by task."""
    groups: dict[str, list[float]] = field(default_factory=dict)
    """Number, mean, and sum of squared deviations of the scores by group."""
    endings: Endings = field(default_factory=Endings)
    failures: Endings = field(default_factory=Endings)
    version_seen: dict[int, float] = field(default_factory=dict)
    """When each policy version was first sampled from."""
    ended: array[float] = field(default_factory=lambda: array("d"))
    """When each session with known versions ended."""
    oldest: array[int] = field(default_factory=lambda: array("q"))
    """The oldest version of each such session's tokens."""

    def add(self, tree: SessionTree, values: Mapping[str, Values], *, left: bool = False) -> None:
        """Count a session.

        Args:
            tree: the session.
            values: of derivers, by name.
            left: it does not count in its group's statistics.
        """
        self.sessions += 1
        record = tree.record
        if record.created_at:
            self.first_time = min(self.first_time, record.created_at)
        for attempt in tree.attempts:
            self._attempt(tree, attempt, left=left)
        for turn in tree.turns:
            for call in turn.calls:
                self.tools[call.name][call.status] += 1
        self._versions(tree)
        self._values(tree, values)

    def _attempt(self, tree: SessionTree, attempt: Attempt, *, left: bool) -> None:
        path = [turn for turn in tree.trajectory(attempt) if _own(turn)]
        for position, turn in enumerate(path):
            if turn.reward is not None:
                self.rewards["environment"].add(position, turn.reward)
        at = attempt.ended_at or _end_of(tree)
        outcome = attempt.outcome
        if outcome is None:
            if attempt.status.ended:
                self.endings.add(attempt.status.kind, at)
            if attempt.status.kind in {"failed", "interrupted"}:
                self.failures.add(_cause(attempt), at)
            return
        cut = attempt.status.kind == "truncated"
        self.endings.add(
            "passed" if outcome.passed else str(attempt.status) if cut else "not passed", at
        )
        (self.solved_at if outcome.passed else self.unsolved_at)[len(path)] += 1
        if tokens := sum(map(_completion, path)):
            self.tokens[outcome.passed][math.ceil(4 * math.log2(tokens))] += 1
        task = self.tasks.setdefault(tree.record.task, [0, 0])
        task[0] += 1
        task[1] += outcome.passed
        group = tree.record.group
        if group is not None and not left:
            one = self.groups.setdefault(group, [0.0, 0.0, 0.0])
            one[0] += 1
            apart = outcome.score - one[1]  # Welford: exactly 0 if all scores are equal
            one[1] += apart / one[0]
            one[2] += apart * (outcome.score - one[1])

    def _versions(self, tree: SessionTree) -> None:
        oldest: int | None = None
        for turn in tree.turns:
            if turn.tokens is None or not _own(turn):
                continue
            for segment in turn.tokens.segments:
                if not segment.sampled:
                    continue
                low, high = segment.version_low, segment.version_high
                oldest = low if oldest is None else min(oldest, low)
                at = turn.started_at or tree.record.created_at
                self.version_seen[high] = min(at, self.version_seen.get(high, math.inf))
        if oldest is not None:
            self.ended.append(_end_of(tree))
            self.oldest.append(oldest)

    def _values(self, tree: SessionTree, values: Mapping[str, Values]) -> None:
        for name, (kind, numbers) in values.items():
            depths: list[int] = []
            for turn, value in zip(tree.turns, numbers, strict=False):
                depths.append(0 if turn.parent is None else depths[turn.parent] + 1)
                if not _own(turn):
                    continue
                if kind == "rewards":
                    self.rewards[name].add(depths[-1], value)
                else:
                    shown = max(-_LARGEST, min(_LARGEST, value))
                    self.advantages[name][math.floor(shown / BIN)] += 1


def _own(turn: Turn) -> bool:
    """Return whether a turn is one of the policy's own, in the main conversation."""
    return turn.role == "main" and turn.agent == "main"


def _completion(turn: Turn) -> int:
    if turn.tokens is not None:
        return int(turn.tokens.response_ids.size)
    return 0 if turn.usage is None else turn.usage.completion_tokens


def _end_of(tree: SessionTree) -> float:
    """Return when a session ended; when its last turn did, if that is not recorded."""
    ends = [attempt.ended_at for attempt in tree.attempts if attempt.ended_at]
    if ends:
        return max(ends)
    if not tree.turns:
        return tree.record.created_at
    last = tree.turns[-1]
    return (last.started_at or tree.record.created_at) + last.policy_seconds + last.env_seconds


def _cause(attempt: Attempt) -> str:
    line = " ".join((attempt.cause.strip().splitlines() or [""])[0].split())
    name = f"{attempt.status}: {line}" if line else str(attempt.status)
    return name if len(name) <= _CAUSE else name[: _CAUSE - 1] + "…"
