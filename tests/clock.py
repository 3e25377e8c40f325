"""The clocks, set forward: a deadline passes at the moment that a test chooses.

A test with a short deadline fails on a machine that needs longer than that for the steps before it.
With a long deadline and a clock that is set forward after these steps, speed does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

__all__ = ["Forward", "forward"]

Forward = Callable[[float], None]


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> Forward:
    """Set ``time.time`` and ``time.monotonic``, the clock of event loops, forward by seconds.

    To be called in the event loop's thread: its timers are looked at between two callbacks.
    """
    monotonic, wall, ahead = time.monotonic, time.time, 0.0

    def step(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead)
    monkeypatch.setattr(time, "time", lambda: wall() + ahead)
    return step
