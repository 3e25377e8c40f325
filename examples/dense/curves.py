"""Plot learning curves of all arms, with intervals over seeds, and print a summary of each arm.

python examples/dense/curves.py --results RESULTS --out IMAGES
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from pairs import difference, half_width

_WINDOW = 3
"""Updates over which a curve is averaged."""


def lines(folder: Path) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return the log lines of every run, by arm and seed."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(dict)
    for path in sorted(folder.glob("*-*.jsonl")):
        read = [json.loads(line) for line in path.read_text().splitlines()]
        if read:
            found[read[0]["arm"]][read[0]["seed"]] = read
    return dict(found)


def curve(runs: dict[int, list[dict[str, Any]]], name: str) -> tuple[Any, Any, Any]:
    """Return updates, means and half-widths of 95% intervals over seeds of a smoothed measure.

    Only updates that every seed has are used. With one seed, the half-widths are 0.
    """
    series = [[line for line in read if line["kind"] == "update"] for read in runs.values()]
    n = min(map(len, series), default=0)
    values = np.array([[_of(line, name) for line in one[:n]] for one in series])
    kernel = np.ones(min(_WINDOW, max(n, 1)))
    smooth = np.array([np.convolve(one, kernel, "valid") / kernel.size for one in values])
    at = np.arange(n - kernel.size + 1) + kernel.size
    mean = smooth.mean(0)
    seeds = len(smooth)
    if seeds > 1:
        half = np.array([half_width(column) for column in smooth.T])
    else:
        half = np.zeros_like(mean)
    return at, mean, half


def _of(line: dict[str, Any], name: str) -> float:
    if name == "gradient_share":
        groups = line["groups"]
        return groups["with_gradient"] / max(1, sum(groups.values()) - groups["with_gradient"])
    return float(line.get(name) or 0.0)


def summary(found: dict[str, dict[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return a summary of each arm."""
    rows = []
    for arm, runs in found.items():
        updates = {s: [x for x in read if x["kind"] == "update"] for s, read in runs.items()}
        evals = [[x for x in read if x["kind"] == "eval"] for read in runs.values()]
        final = [of_seed[-1] for of_seed in evals if of_seed]
        groups: dict[str, int] = defaultdict(int)
        for one in updates.values():
            for line in one:
                for kind, count in line["groups"].items():
                    groups[kind] += count
        rows.append(
            {
                "arm": arm,
                "seeds": len(runs),
                "updates": min((len(one) for one in updates.values()), default=0),
                "tokens": float(np.mean([sum(x["sampled_tokens"] for x in one)
                                         for one in updates.values()] or [0])),
                "eval_at": [x["update"] for x in final],
                "eval": [round(x["success"], 3) for x in final],
                "groups": dict(groups),
                "minus_outcome": _against_outcome(found, arm),
            }
        )  # fmt: skip
    return rows


def _against_outcome(
    found: dict[str, dict[int, list[dict[str, Any]]]], arm: str
) -> dict[str, float] | None:
    against = difference(found[arm], found.get("outcome", {})) if arm != "outcome" else None
    return None if against is None else against._asdict()


def main(given: argparse.Namespace) -> None:
    """Print a table and write the plots."""
    found = lines(given.results)
    for row in summary(found):
        print(json.dumps(row))
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    given.out.mkdir(parents=True, exist_ok=True)
    measures = {
        "success": "success of training sessions (new packages in each update)",
        "share_mended": "share of failing hidden cases fixed",
        "gradient_share": "share of groups with a gradient",
    }
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5))
    for axis, (name, title) in zip(axes, measures.items(), strict=True):
        for i, (arm, runs) in enumerate(found.items()):
            at, mean, half = curve(runs, name)
            axis.plot(at, mean, label=f"{arm} ({len(runs)})", color=f"C{i}")
            axis.fill_between(at, mean - half, mean + half, color=f"C{i}", alpha=0.12)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("updates")
        axis.set_ylim(-0.02, 1.02)
    axes[0].legend(fontsize=8, title="arm (seeds)")
    figure.tight_layout()
    figure.savefig(given.out / "dense.png", dpi=110)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--results", type=Path, default=Path("results"))
    made.add_argument("--out", type=Path, default=Path("plots"))
    return made


if __name__ == "__main__":
    main(parser().parse_args())
