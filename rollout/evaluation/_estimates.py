"""Estimates from repeated attempts at tasks: pass@k, pass^k, intervals, paired differences."""

from __future__ import annotations

from math import comb, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajgym.trajectory import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Counts", "Difference", "Interval", "paired_difference", "pass_at", "pass_hat", "solved"]

_Z = 1.959963984540054
"""97.5th percentile of the normal distribution, for a two-sided 95% interval."""
_RESAMPLES = 10_000


class Counts(NamedTuple):
    """Counts of scored and passed attempts at one task."""

    n: int
    passed: int


class Interval(NamedTuple):
    """An estimate with its 95% confidence interval."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A mean difference over tasks with its 95% confidence interval.

    Args:
        value: mean over the tasks of this run's solved share minus the other's.
        low: lower end of the interval; None with fewer than two tasks.
        high: upper end.
        tasks: number of tasks that both runs scored.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int


def pass_at(k: int, tasks: Sequence[Counts]) -> float | None:
    """Return the unbiased estimate that at least one of k attempts passes, averaged over tasks.

    ``1 - C(n - c, k) / C(n, k)`` of Chen et al. 2021 (arXiv:2107.03374), equation 1. Tasks with
    fewer than k scored attempts are left out; None if that leaves none.
    """
    _check(k)
    rates = [1 - comb(n - c, k) / comb(n, k) for n, c in tasks if n >= k]
    return fmean(rates) if rates else None


def pass_hat(k: int, tasks: Sequence[Counts]) -> float | None:
    """Return the unbiased estimate that all of k attempts pass, averaged over tasks.

    ``C(c, k) / C(n, k)`` of tau-bench (arXiv:2406.12045). Tasks as for :func:`pass_at`.
    """
    _check(k)
    rates = [comb(c, k) / comb(n, k) for n, c in tasks if n >= k]
    return fmean(rates) if rates else None


def solved(tasks: Sequence[Counts]) -> Interval | None:
    """Return the solved share over tasks with a 95% interval; None without a scored attempt.

    The value is the mean of the tasks' shares. The interval is Wilson's score interval with an
    effective sample size: attempts at the same task are correlated, so the number of attempts is
    divided by the design effect, the ratio of the clustered variance to that of independent
    attempts. The effective size is at least the number of tasks, so that the interval does not
    shrink to a point for 0 of n and n of n.
    """
    scored = [task for task in tasks if task.n]
    if not scored:
        return None
    shares = np.array([c / n for n, c in scored])
    attempts, m = sum(task.n for task in scored), len(scored)
    p = float(shares.mean())
    independent = p * (1 - p) / attempts
    clustered = float(shares.var(ddof=1)) / m if m > 1 else 0.0
    effect = max(1.0, clustered / independent) if independent else attempts / m
    n = max(attempts / effect, float(m)) if m > 1 else float(attempts)
    return _wilson(p, n)


def _wilson(p: float, n: float) -> Interval:
    middle = p + _Z**2 / (2 * n)
    half = _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return Interval(p, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


def paired_difference(this: Mapping[str, Counts], other: Mapping[str, Counts]) -> Difference | None:
    """Return the difference in the solved share between two runs, on the tasks that both scored.

    The interval is the percentile bootstrap over tasks, 10,000 resamples from a fixed seed, so
    the result is reproducible. None if the runs share no scored task.
    """
    shared = sorted(t for t in this if this[t].n and t in other and other[t].n)
    if not shared:
        return None
    gains = np.array([this[t].passed / this[t].n - other[t].passed / other[t].n for t in shared])
    value = float(gains.mean())
    if len(shared) < 2:
        return Difference(value, None, None, len(shared))
    picks = np.random.default_rng(0).integers(len(shared), size=(_RESAMPLES, len(shared)))
    low, high = np.quantile(gains[picks].mean(axis=1), (0.025, 0.975)).tolist()
    return Difference(value, low, high, len(shared))


def _check(k: int) -> None:
    if k < 1:
        raise InvalidInput(f"k is {k}; pass@k and pass^k need at least 1")
