"""Counters in Prometheus' text format."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from trajgym.rollout.monitoring import family, histogram, single

if TYPE_CHECKING:
    from trajgym.server.control import Control
    from trajgym.server.upstream import Exchange

__all__ = ["Metrics"]

_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counters and gauges of a server."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Answered calls, by dialect."""
        self.refused: Counter[int] = Counter()
        """Calls answered with an error, by status."""
        self.repeats: Counter[str] = Counter()
        """Requests, by the rule for repeated requests."""
        self.inexact: Counter[str] = Counter()
        """Turns recorded as text although ids were requested, by reason."""
        self.tokens: Counter[str] = Counter()
        self.running = 0
        self.held_seconds = 0.0
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def answered(self, dialect: str, exchange: Exchange) -> None:
        """Count an answered call."""
        self.calls[dialect] += 1
        self.held_seconds += exchange.paused
        usage = exchange.answer.usage or {}
        self.tokens["prompt"] += usage.get("prompt_tokens") or 0
        self.tokens["completion"] += usage.get("completion_tokens") or 0
        seconds = time.time() - exchange.started
        self._seconds += seconds
        self._buckets[bisect_left(_BOUNDS, seconds)] += 1

    def text(self, control: Control, sessions: int) -> str:
        """Return everything in Prometheus' text format."""
        lines = [
            *family("calls_total", "counter", "Answered calls.", "dialect", self.calls),
            *family(
                "errors_total", "counter", "Calls answered with an error.", "status", self.refused
            ),
            *family(
                "repeats_total", "counter", "Requests by repetition rule.", "rule", self.repeats
            ),
            *family(
                "inexact_total", "counter", "Turns recorded without ids.", "reason", self.inexact
            ),
            *family("tokens_total", "counter", "Tokens.", "kind", self.tokens),
            *single("calls_running", "gauge", "Calls in progress.", self.running),
            *single("calls_held", "gauge", "Calls waiting for a paused engine.", control.held),
            *single(
                "held_seconds_total",
                "counter",
                "Seconds calls waited for a paused engine.",
                self.held_seconds,
            ),
            *single("sessions_open", "gauge", "Open sessions in memory.", sessions),
            *single("policy_version", "gauge", "Policy version.", control.version),
            *single("paused", "gauge", "1 while the engine is paused.", int(control.paused)),
            *histogram(
                "call_seconds",
                "Duration of a call in seconds.",
                _BOUNDS,
                self._buckets,
                self._seconds,
            ),
        ]
        return "\n".join([*lines, ""])
