"""Plot what the arms of `compare.py` reach from different initial success rates, and print it.

python examples/dense/starts.py --results RESULTS --out IMAGES
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pairs import difference, half_width, scores

Runs = dict[str, dict[int, list[dict[str, Any]]]]
"""Lines of a run, by arm and seed."""


def conditions(folder: Path) -> dict[tuple[int, float, float], Runs]:
    """Return the finished runs by number of bugs, learning rate and initial success."""
    found: dict[tuple[int, float, float], Runs] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            read = json.loads(line)
            runs = found[read["bugs"], read["rate"], read["start"]]
            runs[read["arm"]].setdefault(read["seed"], []).append(read)
    for runs in found.values():
        for arm, of in runs.items():
            runs[arm] = {seed: read for seed, read in of.items() if scores(read)}
    return {
        about: {arm: of for arm, of in runs.items() if of} for about, runs in sorted(found.items())
    }


def row(runs: Runs, arm: str) -> dict[str, Any]:
    """Return what an arm reached: success and groups, and the difference to the outcome alone."""
    of = {seed: [x for x in read if x["kind"] == "update"] for seed, read in runs[arm].items()}
    groups = [x["groups"] for read in of.values() for x in read]
    early = [x["groups"] for read in of.values() for x in read[:5]]
    final = np.array([_evals(read)[1][-1] for read in runs[arm].values()])
    against = difference(runs[arm], runs["outcome"]) if arm != "outcome" else None
    return {
        "arm": arm,
        "seeds": len(of),
        "before": round(float(np.mean([_evals(read)[1][0] for read in runs[arm].values()])), 4),
        "after": round(float(final.mean()), 4),
        "half_width": round(half_width(final), 4) if len(final) > 1 else None,
        "all_failed_first_5": round(_share(early, "all_failed"), 3),
        "gradient_first_5": round(_share(early, "with_gradient"), 3),
        "gradient": round(_share(groups, "with_gradient"), 3),
        "turns": int(np.mean([sum(x["turns"] for x in read) for read in of.values()])),
        "minus_outcome": None if against is None else against._asdict(),
    }


def _share(groups: list[dict[str, int]], kind: str) -> float:
    every = sum(sum(n for k, n in one.items() if k != "with_gradient") for one in groups)
    return sum(one.get(kind, 0) for one in groups) / max(every, 1)


def _evals(read: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    found = [x for x in read if x["kind"] == "eval"]
    return [x["update"] for x in found], [x["success"] for x in found]


def main(given: argparse.Namespace) -> None:
    """Print a line for each condition and arm, and write the plot."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    found = conditions(given.results)
    for (bugs, rate, start), runs in found.items():
        for arm in runs:
            about = {"bugs": bugs, "rate": rate, "start": start}
            print(json.dumps(about | row(runs, arm)))
    columns = min(2, len(found))
    lines = -(-len(found) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.6 * columns, 3.6 * lines), sharey=True, squeeze=False
    )
    names = sorted({arm for runs in found.values() for arm in runs}, key=_order)
    for axis, ((bugs, _, _), runs) in zip(axes.flat, found.items(), strict=False):
        for arm in sorted(runs, key=_order):
            at = _evals(next(iter(runs[arm].values())))[0]
            values = np.array([_evals(read)[1] for read in runs[arm].values()])
            mean, half = values.mean(0), np.zeros(len(at))
            if len(values) > 1:
                half = np.array([half_width(column) for column in values.T])
            color = f"C{names.index(arm)}"
            axis.plot(at, mean, label=arm, color=color)
            axis.fill_between(at, mean - half, mean + half, color=color, alpha=0.13)
        before = np.mean([_evals(read)[1][0] for of in runs.values() for read in of.values()])
        axis.set_title(f"{bugs} bugs, {before:.1%} solved before training", fontsize=10)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("updates")
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    axes[0, 0].set_ylabel("success on held-out tasks")
    drawn = {text: line for axis in axes.flat for line, text in _labelled(axis)}
    axes[0, 0].legend([drawn[arm] for arm in names], names, fontsize=8)
    figure.tight_layout()
    given.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out / "starts.png", dpi=110)


def _labelled(axis: Any) -> zip[tuple[Any, str]]:
    return zip(*axis.get_legend_handles_labels(), strict=True)


def _order(arm: str) -> tuple[int, str]:
    known = ["outcome", "gigpo", "tree", "progress", "steps", "gigpo_steps"]
    return (known.index(arm) if arm in known else len(known), arm)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--results", type=Path, default=Path("results"))
    made.add_argument("--out", type=Path, default=Path("plots"))
    return made


if __name__ == "__main__":
    main(parser().parse_args())
