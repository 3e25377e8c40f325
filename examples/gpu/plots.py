"""Plot the results: success on held-out mazes, and how old samples were.

python examples/gpu/plots.py --out RESULTS
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

_COLOURS = {"outcome": "#1f6fb4", "gigpo": "#d1662a", "stepwise": "#3a8f4d"}


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the results of one kind, of all files in a folder."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = (json.loads(line) for line in path.read_text().splitlines() if line)
        found += [line for line in lines if line["kind"] == kind]
    return found


def curves(folder: Path, axes: Any) -> None:
    """Draw each run thin, and the mean of a deriver's seeds thick."""
    start = rows(folder, "prepared")
    by_deriver: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    by_run: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows(folder, "eval"):
        by_run[row["run"]][row["step"]] = row["success"]
    for name, points in by_run.items():
        if start:
            points.setdefault(0, start[-1]["success"])
        deriver = name.partition(":")[0]
        for step, value in points.items():
            by_deriver[deriver][step].append(value)
        steps = sorted(points)
        colour = _COLOURS.get(deriver, "grey")
        axes.plot(steps, [points[s] for s in steps], color=colour, alpha=0.35, lw=1)
    for deriver, found in by_deriver.items():
        steps, seeds = sorted(found), max(map(len, found.values()))
        # A step that not all seeds reached has another mean: leave it to the thin lines.
        steps = [s for s in steps if len(found[s]) == seeds]
        means = [np.mean(found[s]) for s in steps]
        label = f"{deriver} ({seeds} seed{'s' if seeds > 1 else ''})"
        axes.plot(
            steps, means, color=_COLOURS.get(deriver, "grey"), lw=2.2, marker="o", label=label
        )
    axes.set(xlabel="updates", ylabel="solved, held-out mazes", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def staleness(folder: Path, axes: Any) -> None:
    """Draw the share of samples by how many versions they were behind."""
    by_deriver: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows(folder, "run"):
        if row["run"] != "sync":
            counts = {int(k): v for k, v in row["staleness"].items()}
            by_deriver[row["run"].partition(":")[0]].update(counts)
    width = 0.8 / max(len(by_deriver), 1)
    for i, (name, counts) in enumerate(by_deriver.items()):
        ages = sorted(counts)
        shares = [counts[a] / counts.total() for a in ages]
        middle = (len(by_deriver) - 1) / 2
        places = [a + (i - middle) * width for a in ages]
        axes.bar(places, shares, width, label=name, color=_COLOURS.get(name, "grey"))
    oldest = max((max(counts) for counts in by_deriver.values()), default=0)
    axes.set(xlabel="versions behind when trained", ylabel="share of samples")
    axes.set_xticks(range(oldest + 1))
    axes.grid(alpha=0.3, axis="y")
    if by_deriver:
        axes.legend()


def main(arguments: list[str] | None = None) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    folder = parser.parse_args(arguments).out
    for draw, name in ((curves, "success.png"), (staleness, "staleness.png")):
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        draw(folder, axes)
        figure.savefig(folder / name, dpi=130)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
