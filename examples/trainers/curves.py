"""Plot success by policy version and by sessions for all trainers, and print a summary of each.

python examples/trainers/curves.py --results RESULTS --out IMAGES
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "trl": "TRL (asynchronous)",
    "areal": "AReaL (asynchronous)",
    "verl": "verl (synchronous)",
    "verl-async": "verl (asynchronous)",
}
_WINDOW = 5
"""Versions over which a curve is averaged."""
_SESSIONS = 144
"""Sessions over which a curve is averaged."""


def sessions(path: Path) -> list[dict[str, Any]]:
    """Return the scored sessions of a file, with versions and times from the first one on."""
    read = [json.loads(line) for line in path.read_text().splitlines()]
    scored = [line for line in read if line["score"] is not None and line["low"] is not None]
    first, began = min(s["low"] for s in scored), min(s["began"] for s in scored)
    return [
        s
        | {"version": s["low"] - first, "seconds": s["ended"] - began, "span": s["high"] - s["low"]}
        for s in scored
    ]


def by_version(read: list[dict[str, Any]], name: str) -> tuple[Any, Any, Any]:
    """Return versions, running means of a measure, and half-widths of 95% intervals over groups."""
    groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in read:
        groups[one["version"]][one["group"]].append(float(one[name] or 0.0))
    last = max(groups)
    at, means, halves = [], [], []
    for end in range(min(_WINDOW, last) - 1, last + 1):
        inside = [
            float(np.mean(scores))
            for version in range(end - _WINDOW + 1, end + 1)
            for scores in groups.get(version, {}).values()
        ]
        if inside:
            at.append(end + 1)
            means.append(float(np.mean(inside)))
            halves.append(1.96 * float(np.std(inside)) / max(len(inside), 1) ** 0.5)
    return np.array(at), np.array(means), np.array(halves)


def by_sessions(read: list[dict[str, Any]], name: str) -> tuple[Any, Any]:
    """Return numbers of ended sessions, and means of a measure over the last of them."""
    ended = sorted(read, key=lambda one: one["seconds"])
    values = np.array([float(one[name] or 0.0) for one in ended])
    if len(values) < _SESSIONS:
        return np.array([]), np.array([])
    means = np.convolve(values, np.ones(_SESSIONS) / _SESSIONS, "valid")
    return np.arange(_SESSIONS, len(values) + 1), means


def summary(read: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts, and success in the first and the last ten versions."""
    last = max(one["version"] for one in read)
    early = [one["score"] for one in read if one["version"] < 10]
    late = [one["score"] for one in read if one["version"] > last - 10]
    return {
        "sessions": len(read),
        "versions": last,
        "first_ten": round(float(np.mean(early)), 3),
        "last_ten": round(float(np.mean(late)), 3),
        "turns": sum(one["turns"] for one in read),
        "turns_same": sum(one["same"] for one in read),
        "tokens": sum(one["tokens"] for one in read),
        "seconds": round(max(one["seconds"] for one in read)),
        "sessions_of_several_versions": sum(one["span"] > 0 for one in read),
    }


def main(given: argparse.Namespace) -> None:
    """Print the summaries and write the plot."""
    files = {name: given.results / f"{name}.jsonl" for name in NAMES}
    found = {name: sessions(path) for name, path in files.items() if path.exists()}
    for name, read in found.items():
        print(json.dumps({"trainer": name, **summary(read)}))
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5))
    for i, (name, read) in enumerate(found.items()):
        for axis, measure in ((axes[0], "score"), (axes[1], "mended")):
            at, mean, half = by_version(read, measure)
            axis.plot(at, mean, color=f"C{i}", label=NAMES[name])
            axis.fill_between(at, mean - half, mean + half, color=f"C{i}", alpha=0.12)
        axes[2].plot(*by_sessions(read, "score"), color=f"C{i}")
    titles = ("success", "share of failing hidden cases fixed", "success")
    labels = ("policy version of the first turn", "policy version of the first turn", "sessions")
    for axis, title, label in zip(axes, titles, labels, strict=True):
        axis.set_title(f"{title} of training sessions", fontsize=10)
        axis.set_xlabel(label)
        axis.set_ylim(-0.02, 1.02)
        axis.grid(alpha=0.2)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    given.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out / "trainers.png", dpi=110)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command-line options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--results", type=Path, default=Path("results"))
    made.add_argument("--out", type=Path, default=Path("plots"))
    return made


if __name__ == "__main__":
    main(parser().parse_args())
