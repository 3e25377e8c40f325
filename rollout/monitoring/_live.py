"""Figures of a run, brought up to date with each poll."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trajgym.rollout._slots import SLOTS, Slots
from trajgym.rollout.monitoring._exposition import family, histogram, single
from trajgym.rollout.monitoring._idle import IdleTimes
from trajgym.trajectory import FollowedRun
from trajgym.trajectory._internal import Closing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from trajgym.trajectory import Attempt, RunChanges, Turn

__all__ = ["STALENESS", "LiveFigures", "LiveView", "exposition"]

STALENESS = (0, 1, 2, 4, 8)
"""Upper bounds of the staleness histogram, in policy versions."""
_MAX_CAUSES = 200
_MAX_CAUSE = 160


class _Finished(NamedTuple):
    at: float
    tokens: int


@dataclass(slots=True)
class LiveFigures:
    """Counts of a run so far, and rates over the last seconds of the clock."""

    sessions: int = 0
    running: int = 0
    """Attempts in progress."""
    interrupted: int = 0
    groups: int = 0
    sealed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """Attempts that ended, by status."""
    scored: int = 0
    passed: int = 0
    score_sum: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)
    """Causes of failed attempts, first line each; at most 200 different ones."""
    turns: int = 0
    exact: int = 0
    """Turns with token ids."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    policy_seconds: float = 0.0
    env_seconds: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds of ended attempts by what they waited for; see :attr:`Attempt.waits`."""
    idle: dict[str, float] = field(default_factory=dict)
    """Shares of time without work, from 0 to 1, of ``slots``, ``engine`` and ``sandboxes``, as far
    as they are known; ``docs/runs.md`` defines them."""
    version: int = -1
    """The newest policy version of any token; -1 without one."""
    staleness: list[int] = field(default_factory=lambda: [0] * (len(STALENESS) + 1))
    """Turns by staleness: versions between their oldest token and the newest version known when
    they were read. Buckets as :data:`STALENESS`; the last is beyond."""
    staleness_sum: int = 0
    turns_per_second: float = 0.0
    tokens_per_second: float = 0.0
    """Completion tokens."""
    first_turn: float | None = None
    """Unix time (s) at which the first turn began."""
    last_turn: float | None = None
    """Unix time (s) at which the last turn ended."""

    @property
    def mean_score(self) -> float | None:
        """Mean score of scored attempts."""
        return self.score_sum / self.scored if self.scored else None

    @property
    def policy_share(self) -> float | None:
        """Share of the turns' time that was spent in the policy; the rest is the environment's."""
        whole = self.policy_seconds + self.env_seconds
        return self.policy_seconds / whole if whole else None


class LiveView(Closing):
    """Follows a run and keeps its figures.

    Args:
        path: of the run, which may be in progress.
        window: seconds over which rates are measured.
        now: the clock, Unix time (s).

    Raises:
        StoreError: there is no run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        window: float = 30.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.figures = LiveFigures()
        self._run = FollowedRun(path)
        self._window, self._now = window, now
        self._recent: deque[_Finished] = deque()
        self._idle = IdleTimes(None)

    def update(self) -> LiveFigures:
        """Read what is new and return the figures; the same object each time."""
        found = self._run.poll()
        calls = map(Slots.of_text, self._run.meta(SLOTS))
        slots = max(calls, key=lambda call: call.since, default=None)
        if slots != self._idle.slots:  # another call collects into the run
            self._idle = IdleTimes(slots)
        self._take(found)
        while not found.complete:
            found = self._run.poll()
            self._take(found)
        figures = self.figures
        figures.running, figures.interrupted = found.running, found.interrupted
        figures.groups, figures.sealed = found.groups, found.sealed
        self._rates()
        figures.idle = dict(self._idle.shares(self._now(), found.since))
        return figures

    def close(self) -> None:
        """Close the run's files. Idempotent."""
        self._run.close()

    def _take(self, found: RunChanges) -> None:
        self.figures.sessions += len(found.sessions)
        for record in found.sessions:
            self._idle.begin(record.created_at)
        for turn in found.turns:
            if not turn.simulated:
                self._turn(turn)
        for attempt in found.ended:
            self._attempt(attempt)

    def _turn(self, turn: Turn) -> None:
        figures = self.figures
        tokens = 0
        if turn.usage is not None:
            figures.prompt_tokens += turn.usage.prompt_tokens or 0
            tokens = turn.usage.completion_tokens or 0
        if turn.tokens is not None:
            figures.exact += 1
            sampled = [each for each in turn.tokens.segments if each.sampled]
            tokens = tokens or sum(each.length for each in sampled)
            if sampled:
                figures.version = max(figures.version, *(each.version_high for each in sampled))
                stale = figures.version - min(each.version_low for each in sampled)
                figures.staleness[bisect_left(STALENESS, stale)] += 1
                figures.staleness_sum += stale
        self._idle.call(turn.started_at, turn.started_at + turn.policy_seconds)
        figures.turns += 1
        figures.completion_tokens += tokens
        figures.policy_seconds += turn.policy_seconds
        figures.env_seconds += turn.env_seconds
        figures.first_turn = min(turn.started_at, figures.first_turn or turn.started_at)
        at = turn.started_at + turn.policy_seconds + turn.env_seconds
        figures.last_turn = max(at, figures.last_turn or at)
        if at > self._now() - self._window:
            self._recent.append(_Finished(at, tokens))

    def _attempt(self, attempt: Attempt) -> None:
        figures = self.figures
        figures.statuses[str(attempt.status)] += 1
        self._idle.end(attempt)
        for cause, seconds in attempt.waits.items():
            figures.waits[cause] = figures.waits.get(cause, 0.0) + seconds
        if attempt.outcome is not None:
            figures.scored += 1
            figures.passed += attempt.outcome.passed
            figures.score_sum += attempt.outcome.score
        if attempt.status.kind == "failed":
            cause = (attempt.cause.strip().splitlines() or [str(attempt.status)])[0][:_MAX_CAUSE]
            if cause in figures.causes or len(figures.causes) < _MAX_CAUSES:
                figures.causes[cause] += 1

    def _rates(self) -> None:
        now, figures = self._now(), self.figures
        kept = deque(one for one in self._recent if one.at > now - self._window)
        self._recent = kept
        # A run that began a moment ago has no full window behind it.
        begun = now if figures.first_turn is None else figures.first_turn
        seconds = max(1.0, min(self._window, now - begun))
        figures.turns_per_second = len(kept) / seconds
        figures.tokens_per_second = sum(one.tokens for one in kept) / seconds


def exposition(figures: LiveFigures) -> str:
    """Return the figures in Prometheus' text format (version 0.0.4)."""
    tokens = {"prompt": figures.prompt_tokens, "completion": figures.completion_tokens}
    seconds = {"policy": figures.policy_seconds, "environment": figures.env_seconds}
    groups = {"sealed": figures.sealed, "open": figures.groups - figures.sealed}
    failures: Counter[str] = Counter()
    for status, count in figures.statuses.items():
        kind, _, part = status.partition(":")
        if kind == "failed":
            failures[part] += count
    lines = [
        *single("run_sessions_total", "counter", "Sessions that began.", figures.sessions),
        *single("run_attempts_running", "gauge", "Attempts in progress.", figures.running),
        *single(
            "run_attempts_interrupted", "gauge", "Attempts without an end.", figures.interrupted
        ),
        *family(
            "run_attempts_total", "counter", "Ended attempts.", "status", dict(figures.statuses)
        ),
        *family("run_failures_total", "counter", "Failed attempts.", "part", dict(failures)),
        *single("run_scored_total", "counter", "Attempts with an outcome.", figures.scored),
        *single("run_passed_total", "counter", "Attempts that passed.", figures.passed),
        *family("run_groups", "gauge", "Groups.", "state", groups),
        *single("run_turns_total", "counter", "Turns.", figures.turns),
        *single("run_exact_turns_total", "counter", "Turns with token ids.", figures.exact),
        *family("run_tokens_total", "counter", "Tokens.", "kind", tokens),
        *family("run_turn_seconds_total", "counter", "Time of turns.", "part", seconds),
        *family(
            "run_wait_seconds_total",
            "counter",
            "Time of ended attempts, by what they waited for.",
            "cause",
            figures.waits,
        ),
        *family("run_idle_share", "gauge", "Share of time without work.", "part", figures.idle),
        *single("run_policy_version", "gauge", "Newest policy version.", figures.version),
        *histogram(
            "run_staleness",
            "Versions between a turn's oldest token and the newest version.",
            STALENESS,
            figures.staleness,
            figures.staleness_sum,
        ),
    ]
    return "\n".join([*lines, ""])
