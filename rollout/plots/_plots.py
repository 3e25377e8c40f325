"""The plots of a run, each a pure function of what was counted."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from trajgym.rollout.plots._data import Plot, Series
from trajgym.rollout.plots._tally import BIN, Endings, Sums, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["PLOTS"]

_ROWS = 15
"""Most labels of horizontal bars; the rest is summed up."""
_BARS = 40
"""Up to this number of tasks each one has a bar; more are shown as a histogram."""
_TIMES = 24
"""Bins of a time axis."""
_STATUSES = ("ok", "error", "invalid", "timeout", "not_executed")


def success_by_turn(tally: Tally) -> Plot:
    """Return the share of scored attempts that had passed, and that still worked, by turn."""
    ended = tally.solved_at + tally.unsolved_at
    total = sum(ended.values())
    x = list(range(max(ended) + 1)) if total else []
    passed = accumulate(tally.solved_at[n] for n in x)
    working = (total - n for n in accumulate(ended[n] for n in x))
    series = [
        Series(name="passed", y=[n / total for n in passed]),
        Series(name="still working", y=[n / total for n in working]),
    ]
    return Plot(
        name="success-by-turn",
        title="Success by turn",
        x_label="turns of the attempt",
        y_label="share of scored attempts",
        kind="lines",
        x=[float(n) for n in x],
        series=series if total else [],
        shares=True,
        note=f"{total:,} scored attempts" if total else "no attempt has an outcome",
    )


def reward_by_turn(tally: Tally) -> Plot:
    """Return mean and standard deviation of the rewards of each source by turn."""
    longest = max((len(sums.count) for sums in tally.rewards.values()), default=0)
    series = [_moments(name, sums, longest) for name, sums in sorted(tally.rewards.items())]
    return Plot(
        name="reward-by-turn",
        title="Reward by turn",
        x_label="turn of the attempt",
        y_label="reward",
        kind="lines",
        x=[float(n) for n in range(longest)],
        series=series,
        note="mean, with one standard deviation" if series else "no step rewards are recorded",
    )


def _moments(name: str, sums: Sums, length: int) -> Series:
    mean: list[float | None] = [None] * length
    low, high = list(mean), list(mean)
    for at, (count, total, squares) in enumerate(
        zip(sums.count, sums.total, sums.squares, strict=True)
    ):
        if count:
            middle = total / count
            apart = math.sqrt(max(0.0, squares / count - middle**2))
            mean[at], low[at], high[at] = middle, middle - apart, middle + apart
    return Series(name=name, y=mean, low=low, high=high)


def lengths_in_turns(tally: Tally) -> Plot:
    """Return the distribution of the turns of scored attempts."""
    counts = {"passed": tally.solved_at, "not passed": tally.unsolved_at}
    x, series = _histograms(counts, most=50)
    return Plot(
        name="lengths-turns",
        title="Length in turns",
        x_label="turns of the attempt",
        y_label="scored attempts",
        kind="bars",
        x=x,
        series=series,
        note=_middle(tally.solved_at + tally.unsolved_at, "turns"),
    )


def lengths_in_tokens(tally: Tally) -> Plot:
    """Return the distribution of the completion tokens of scored attempts, in powers of two."""
    both = tally.tokens[True] + tally.tokens[False]
    lowest, highest = min(both, default=0), max(both, default=-1)
    series = [
        Series(name=name, y=[float(tally.tokens[key][n]) for n in range(lowest, highest + 1)])
        for name, key in (("passed", True), ("not passed", False))
        if tally.tokens[key]
    ]
    return Plot(
        name="lengths-tokens",
        title="Length in tokens",
        x_label="completion tokens of the attempt",
        y_label="scored attempts",
        kind="bars",
        x=[2 ** (n / 4) for n in range(lowest - 1, highest + 1)],
        series=series,
        log_x=True,
        note=f"{sum(both.values()):,} scored attempts" if both else "no token counts are recorded",
    )


def staleness(tally: Tally) -> Plot:
    """Return the distribution of the sessions' staleness.

    It is the newest policy version that the run had sampled from when the session ended, minus
    the oldest version of its tokens.
    """
    newest_at: list[tuple[float, int]] = []
    newest = -1
    for at, version in sorted((at, version) for version, at in tally.version_seen.items()):
        newest = max(newest, version)
        newest_at.append((at, newest))
    times = [at for at, _ in newest_at]
    counts: Counter[int] = Counter()
    for ended, oldest in zip(tally.ended, tally.oldest, strict=True):
        known = bisect_right(times, ended)
        counts[max(0, (newest_at[known - 1][1] if known else oldest) - oldest)] += 1
    x, series = _histograms({"sessions": counts}, most=40)
    versions = len(tally.version_seen)
    return Plot(
        name="staleness",
        title="Staleness",
        x_label="policy versions between a session's oldest token and its end",
        y_label="sessions",
        kind="bars",
        x=x,
        series=series,
        note=f"{versions:,} policy versions" if versions else "no policy versions are recorded",
    )


def tool_use(tally: Tally) -> Plot:
    """Return the calls of each tool by status."""
    totals = Counter({name: sum(calls.values()) for name, calls in tally.tools.items()})
    shown = [name for name, _ in totals.most_common(_ROWS)]
    rest: Counter[str] = Counter()
    for name in totals.keys() - set(shown):
        rest += tally.tools[name]
    parts = [tally.tools[name] for name in shown] + [rest] * bool(rest)
    labels = shown + [f"{len(totals) - len(shown)} others"] * bool(rest)
    series = [
        Series(name=status.replace("_", " "), y=[float(part[status]) for part in parts])
        for status in _STATUSES
        if any(part[status] for part in parts)
    ]
    return Plot(
        name="tool-use",
        title="Tool use",
        x_label="calls",
        y_label="",
        kind="rows",
        x=labels,
        series=series,
        note=f"{totals.total():,} calls" if totals else "no tool was called",
    )


def solve_rate(tally: Tally) -> Plot:
    """Return the solve rate of each task; of many tasks, how many have which rate."""
    rates = {name: passed / scored for name, (scored, passed) in tally.tasks.items()}
    never = sum(rate == 0 for rate in rates.values())
    always = sum(rate == 1 for rate in rates.values())
    note = f"{len(rates):,} tasks: {never:,} never solved, {always:,} always"
    if len(rates) > _BARS:
        counts = Counter(min(19, int(rate * 20)) for rate in rates.values())
        return Plot(
            name="solve-rate",
            title="Solve rate of tasks",
            x_label="solve rate",
            y_label="tasks",
            kind="bars",
            x=[n / 20 for n in range(21)],
            series=[Series(name="tasks", y=[float(counts[n]) for n in range(20)])],
            note=note,
        )
    ordered = sorted(rates, key=lambda name: (-rates[name], name))
    return Plot(
        name="solve-rate",
        title="Solve rate of tasks",
        x_label="share of scored attempts that passed",
        y_label="",
        kind="rows",
        x=ordered,
        series=[Series(name="solve rate", y=[rates[name] for name in ordered])] if rates else [],
        shares=True,
        note=note if rates else "no attempt has an outcome",
    )


def group_variance(tally: Tally) -> Plot:
    """Return the distribution of the standard deviation of the scores within groups."""
    spreads = [math.sqrt(m2 / n) for n, _, m2 in tally.groups.values() if n > 1]
    widest = max(spreads, default=0.0)
    width = (widest or 0.5) / 20
    counts = Counter(min(19, int(spread / width)) for spread in spreads if spread)
    equal = sum(spread == 0 for spread in spreads)
    series = [
        Series(name="equal scores", y=[float(equal), *[0.0] * 20]),
        Series(name="different scores", y=[0.0, *(float(counts[n]) for n in range(20))]),
    ]
    share = f"{equal / len(spreads):.0%}" if spreads else ""
    return Plot(
        name="group-variance",
        title="Group variance",
        x_label="standard deviation of the scores of a group",
        y_label="groups",
        kind="bars",
        x=[n * width for n in range(-1, 21)],
        series=series if spreads else [],
        note=f"{equal:,} of {len(spreads):,} groups ({share}) have equal scores: no advantage"
        if spreads
        else "no group has two scored members",
    )


def advantage_distribution(tally: Tally) -> Plot:
    """Return the distribution of the turns' advantages by deriver, over common bins."""
    known = {name: counts for name, counts in sorted(tally.advantages.items()) if counts}
    lowest = min((min(counts) for counts in known.values()), default=0)
    highest = max((max(counts) for counts in known.values()), default=0)
    per = max(1, math.ceil((highest - lowest + 1) / 40))
    first = math.floor(lowest / per)  # so that 0 is an edge
    size = math.floor(highest / per) - first + 1
    series = []
    for name, counts in known.items():
        merged = Counter[int]()
        for at, n in counts.items():
            merged[math.floor(at / per) - first] += n
        total = merged.total()
        series.append(Series(name=name, y=[merged[n] / total for n in range(size)]))
    return Plot(
        name="advantages",
        title="Advantages",
        x_label="advantage of a turn",
        y_label="share of turns",
        kind="steps",
        x=[(first + n) * per * BIN for n in range(size + 1)],
        series=series,
        shares=True,
        note=f"{max(counts.total() for counts in known.values()):,} turns"
        if known
        else "no advantages: derive some with trajgym reward, or name a deriver",
    )


def endings_over_time(tally: Tally) -> Plot:
    """Return how many attempts ended in which way over time."""
    return _over_time(
        tally,
        tally.endings,
        Plot(
            name="endings-over-time",
            title="Endings over time",
            x_label="",
            y_label="attempts",
            kind="bars",
            x=[],
            note="no attempt has ended",
        ),
    )


def failures_over_time(tally: Tally) -> Plot:
    """Return the failures by cause over time."""
    return _over_time(
        tally,
        tally.failures,
        Plot(
            name="failures-over-time",
            title="Failures by cause over time",
            x_label="",
            y_label="failed attempts",
            kind="bars",
            x=[],
            note="no attempt failed",
        ),
    )


PLOTS: dict[str, Callable[[Tally], Plot]] = {
    "success-by-turn": success_by_turn,
    "reward-by-turn": reward_by_turn,
    "lengths-turns": lengths_in_turns,
    "lengths-tokens": lengths_in_tokens,
    "staleness": staleness,
    "tool-use": tool_use,
    "solve-rate": solve_rate,
    "group-variance": group_variance,
    "advantages": advantage_distribution,
    "endings-over-time": endings_over_time,
    "failures-over-time": failures_over_time,
}
"""The functions that make the plots, by name, in order."""


def _histograms(
    counts: Mapping[str, Counter[int]], *, most: int
) -> tuple[list[float], list[Series]]:
    """Return edges and series of at most ``most`` bins over whole numbers."""
    values = [n for counter in counts.values() for n in counter]
    if not values:
        return [], []
    lowest, highest = min(values), max(values)
    width = math.ceil((highest - lowest + 1) / most)
    size = math.ceil((highest - lowest + 1) / width)
    series = []
    for name, counter in counts.items():
        y: list[float | None] = [0.0] * size
        for n, count in counter.items():
            y[(n - lowest) // width] += count  # type: ignore[operator]  # all are numbers
        if counter:
            series.append(Series(name=name, y=y))
    return [lowest + n * width - 0.5 for n in range(size + 1)], series


def _middle(counts: Counter[int], unit: str) -> str:
    total = counts.total()
    if not total:
        return "no attempt has an outcome"
    seen = 0
    for n in sorted(counts):
        seen += counts[n]
        if 2 * seen >= total:
            return f"{total:,} scored attempts, median {n:,} {unit}"
    raise AssertionError(counts)


def _over_time(tally: Tally, endings: Endings, plot: Plot) -> Plot:
    """Return ``plot`` with the counts of endings in equal intervals since the run began."""
    if not endings.times:
        return plot
    begun = min(tally.first_time, min(endings.times))
    last = max(max(one.times, default=begun) for one in (tally.endings, endings))
    unit, seconds = _unit(last - begun)
    width = (last - begun) / _TIMES or 1.0
    totals = Counter(endings.codes)
    names = {code: name for name, code in endings.names.items()}
    shown = [code for code, _ in totals.most_common(7)]
    rest = len(totals) - len(shown)
    bins: dict[int, list[float | None]] = {code: [0.0] * _TIMES for code in shown}
    bins |= {-1: [0.0] * _TIMES} if rest else {}
    for at, code in zip(endings.times, endings.codes, strict=True):
        place = min(_TIMES - 1, int((at - begun) / width))
        bins[code if code in bins else -1][place] += 1  # type: ignore[operator]
    labels = names | {-1: f"{rest} other causes"}
    return Plot(
        name=plot.name,
        title=plot.title,
        x_label=f"{unit} since the run began",
        y_label=plot.y_label,
        kind="bars",
        x=[n * width / seconds for n in range(_TIMES + 1)],
        series=[Series(name=labels[code], y=y) for code, y in bins.items()],
        note=f"{len(endings.times):,} attempts",
    )


def _unit(seconds: float) -> tuple[str, float]:
    for name, length in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 3 * length:
            return name, length
    return "seconds", 1.0
