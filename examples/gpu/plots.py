"""Plot the results: learning curves, staleness of samples, and time per update.

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
    """Return the results of one kind from all files in a directory."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = (json.loads(line) for line in path.read_text().splitlines() if line)
        found += [line for line in lines if line["kind"] == kind]
    return found


def learning(folder: Path, axes: Any) -> None:
    """Draw the mean score of sessions by update, as the mean and the range over seeds."""
    by_deriver: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows(folder, "step"):
        deriver, colon, _ = row["run"].partition(":")
        if colon and "reward" in row["values"]:
            by_deriver[deriver][row["run"]][row["step"]] = row["values"]["reward"]
    for deriver, seeds in by_deriver.items():
        steps = np.arange(1, 1 + min(max(points) for points in seeds.values()))
        scores = np.array(
            [
                _smooth(np.interp(steps, *zip(*points.items(), strict=True)))
                for points in seeds.values()
            ]
        )
        colour = _COLOURS.get(deriver, "grey")
        axes.fill_between(steps, scores.min(0), scores.max(0), color=colour, alpha=0.18, lw=0)
        label = f"{deriver} ({len(seeds)} seed{'s' if len(seeds) > 1 else ''})"
        axes.plot(steps, scores.mean(0), color=colour, lw=2, label=label)
    axes.set(xlabel="updates", ylabel="solved, training sessions", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def held_out(folder: Path, axes: Any) -> None:
    """Draw success on held-out mazes over the games of all seeds, with 95% intervals."""
    start = rows(folder, "prepared")
    by_deriver: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(folder, "eval"):
        by_deriver[row["run"].partition(":")[0]][row["step"]].append(row)
    for i, (deriver, found) in enumerate(by_deriver.items()):
        points = {0: start[-1:]} if start else {}
        points |= dict(sorted(found.items()))
        games = np.array([sum(r["games"] for r in at) for at in points.values()])
        solved = [sum(r["success"] * r["games"] for r in at) for at in points.values()]
        share = np.array(solved) / games
        error = 1.96 * np.sqrt(share * (1 - share) / games)
        places = np.array(list(points)) + 0.8 * i  # shifted, so that intervals don't overlap
        colour = _COLOURS.get(deriver, "grey")
        axes.errorbar(places, share, error, color=colour, marker="o", capsize=3, label=deriver)
    axes.set(xlabel="updates", ylabel="solved, held-out mazes", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def speed(folder: Path, axes: Any) -> None:
    """Draw the parts of the time of an update, synchronous and asynchronous."""
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    compared = [found[-1]["runs"] for place in places if (found := rows(place, "compared"))]
    runs = [
        ("synchronous" if name.startswith("sync") else "asynchronous", one)
        for found in compared
        for name, one in found.items()
    ]
    labels = [f"{when},\n{_workers(one['processes'])}" for when, one in runs]
    below = np.zeros(len(runs))
    parts = {
        "waiting_share": ("waiting for sessions", "#c9ced6"),
        "sync_share": ("sending weights", "#8a94a6"),
        "fwd_bwd_share": ("forward and backward", "#1f6fb4"),
    }
    whole = np.array([one["seconds_per_update"] for _, one in runs])
    for key, (label, colour) in parts.items():
        seconds = np.array([one[key] for _, one in runs]) * whole
        axes.bar(labels, seconds, 0.6, bottom=below, label=label, color=colour)
        below += seconds
    axes.bar(
        labels, np.maximum(whole - below, 0), 0.6, bottom=below, label="other", color="#ead7c3"
    )
    axes.set(ylabel="seconds per update (trainer)")
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    if runs:
        axes.legend()


def _workers(processes: int) -> str:
    if not processes:
        return "a thread"
    return f"{processes} process{'es' if processes > 1 else ''}"


def _smooth(values: Any, width: int = 5) -> list[float]:
    """Return the mean of each value and the ``width - 1`` values before it."""
    return [float(np.mean(values[max(0, i - width + 1) : i + 1])) for i in range(len(values))]


def staleness(folder: Path, axes: Any) -> None:
    """Draw the share of samples by their staleness in versions."""
    by_deriver: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows(folder, "run"):
        if ":" in row["run"]:
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
    draws = {
        "success.png": (learning, held_out),
        "staleness.png": (staleness,),
        "speed.png": (speed,),
    }
    for name, panels in draws.items():
        width = 5.8 * len(panels) if len(panels) > 1 else 7
        figure, axes = pyplot.subplots(
            1, len(panels), figsize=(width, 4.2), layout="constrained", squeeze=False
        )
        for draw, place in zip(panels, axes[0], strict=True):
            draw(folder, place)
        figure.savefig(folder / name, dpi=130)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
