"""Metrics of judges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.rollout.monitoring import family, single

if TYPE_CHECKING:
    from trajgym.server.judging._work import JudgeWork

__all__ = ["judge_metrics"]


def judge_metrics(work: JudgeWork) -> str:
    """Return them in Prometheus' text format."""
    lines = [
        *family("judged_total", "counter", "Turns that got signals.", "source", work.judged),
        *family("judge_failures_total", "counter", "Failed calls.", "source", work.failed),
        *family("judge_given_up_total", "counter", "Turns given up.", "source", work.given_up),
        *single("judge_running", "gauge", "Turns that are being judged.", work.running),
        *single("judge_waiting", "gauge", "Sessions that wait for a judge.", work.waiting),
        *single(
            "judge_failing_seconds",
            "gauge",
            "Seconds since judges began to fail; 0 while they answer.",
            work.failing_seconds,
        ),
    ]
    return "\n".join([*lines, ""])
