"""Differences of arms in success on held-out tasks, paired by task and by seed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""97.5% quantiles of Student's t by degrees of freedom."""


class Difference(NamedTuple):
    """Success of one arm minus that of another, after the last update."""

    mean: float
    over_seeds: float | None
    """Half-width of the 95% interval over seeds, for other training runs; None for one seed."""
    over_tasks: float | None
    """Half-width of the 95% interval over tasks, for other held-out tasks; None for one task."""
    seeds: int
    tasks: int


def half_width(values: npt.NDArray[np.float64]) -> float:
    """Return the half-width of the 95% interval for the mean of at least two values."""
    free = len(values) - 1
    return float(_T.get(free, 1.96 + 2.5 / free) * values.std(ddof=1) / math.sqrt(len(values)))


def scores(read: Sequence[Mapping[str, Any]]) -> dict[Any, float]:
    """Return the success on each held-out task of the last evaluation in a run's lines."""
    found = [x["scores"] for x in read if x["kind"] == "eval" and x.get("scores")]
    if not found:
        return {}
    last = found[-1]
    return dict(last) if isinstance(last, dict) else dict(enumerate(last))


def difference(
    runs: Mapping[int, Sequence[Mapping[str, Any]]], base: Mapping[int, Sequence[Mapping[str, Any]]]
) -> Difference | None:
    """Return how much better ``runs`` are than ``base``, both lines by seed.

    Seeds and tasks that only one of them has are left out; None if nothing is left.
    """
    pairs = [(scores(runs[seed]), scores(base[seed])) for seed in sorted(set(runs) & set(base))]
    pairs = [(mine, other) for mine, other in pairs if mine and other]
    if not pairs:
        return None
    tasks = sorted(set.intersection(*(set(mine) & set(other) for mine, other in pairs)))
    if not tasks:
        return None
    gaps = np.array([[mine[task] - other[task] for task in tasks] for mine, other in pairs])
    return Difference(
        float(gaps.mean()),
        half_width(gaps.mean(1)) if len(pairs) > 1 else None,
        half_width(gaps.mean(0)) if len(tasks) > 1 else None,
        len(pairs),
        len(tasks),
    )
