"""Where collection bends, up to 10,000 engines and 100,000 sandboxes: a simulation, calibrated.

What the SDK costs is measured first, in this run: CPU of a turn, of a delivered session and of its
rows, bytes of a turn (:mod:`benchmarks.scale._calibrate`); starts of sandboxes and what a command
costs are those of ``results/sandbox*.json``. Then a discrete-event model
(:mod:`benchmarks.scale._model`) plays sessions on clusters of growing size, arranged in four ways,
each a step further than the last:

- ``one process``: one collecting process, Docker, sealed groups delivered to one process,
- ``processes``: a collecting process for every 250 sandboxes,
- ``embedded``: sandboxes of the embedded kind besides,
- ``shares``: sealed groups are delivered to a process for every 5,000 sandboxes besides.

Each rate is divided by that of the same cluster if the SDK cost nothing and sandboxes started at
once: 1 is perfect. The workload and the engine are assumptions, which ``Workload`` and ``Cluster``
write down and the JSON repeats.

Usage: python -m benchmarks.bench_scale [--most-sandboxes 100000] [--calibrate 240]
           [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.scale import Cluster, Costs, Found, Workload, measure, simulate

SIZES = ((1, 100), (10, 1_000), (100, 10_000), (1_000, 100_000), (10_000, 100_000))
"""Engines and sandboxes."""
GENERATIONS = 2.0
"""Sessions for each place; more where there are few places."""
WAITS = ("start", "process", "engine", "action", "core", "verify", "held")
"""Parts of the time that a session has its place for, in order."""


def arranged(engines: int, sandboxes: int) -> dict[str, Cluster]:
    """Return the four arrangements of a cluster."""
    one = Cluster(engines=engines, sandboxes=sandboxes)
    processes = replace(one, processes=-(-sandboxes // 250))
    embedded = replace(processes, kind="embedded")
    shares = replace(embedded, deliveries=-(-sandboxes // 5_000))
    return {"one process": one, "processes": processes, "embedded": embedded, "shares": shares}


def free(costs: Costs) -> Costs:
    """Return the costs of an SDK without any, and of sandboxes that start at once."""
    nothing = dict.fromkeys(costs.start, 0.0)
    return replace(
        costs,
        turn=0.0,
        session=0.0,
        delivery=0.0,
        rows=0.0,
        start=nothing,
        starts=dict.fromkeys(costs.starts, 1e9),
        command=nothing,
    )


def play(engines: int, sandboxes: int, costs: Costs) -> dict[str, Any]:
    """Simulate the arrangements of a size."""
    workload = Workload()
    begun = time.perf_counter()
    found: dict[str, Any] = {"engines": engines, "sandboxes": sandboxes, "arrangements": {}}
    clusters = arranged(engines, sandboxes)
    generations = max(GENERATIONS, 30_000 / sandboxes)
    perfect = simulate(clusters["one process"], workload, free(costs), generations)
    found["perfect"] = asdict(perfect)
    print(f"{engines:,} engines, {sandboxes:,} sandboxes: {perfect.turns_per_second:,.0f} turns/s")
    for name, cluster in clusters.items():
        one = simulate(cluster, workload, costs, generations)
        share = one.sessions_per_second / perfect.sessions_per_second
        found["arrangements"][name] = asdict(one) | {
            "of_perfect": share,
            "processes": cluster.processes,
            "deliveries": cluster.deliveries,
        }
        show(name, one, share)
    found["real_seconds"] = time.perf_counter() - begun
    return found


def show(name: str, found: Found, share: float) -> None:
    waits = sorted(found.waits.items(), key=lambda one: -one[1])
    longest = ", ".join(f"{cause} {seconds:.1f} s" for cause, seconds in waits[:3])
    print(
        f"  {name:12} {share:6.1%} of perfect  {found.turns_per_second:9,.0f} turns/s  "
        f"delivery busy {found.busy['delivery']:4.0%}  age {found.staleness:.2f}  "
        f"store {found.store_mb_per_second:6.1f} MB/s  {longest}",
        flush=True,
    )


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    sizes = result["sizes"]
    labels = [f"{one['engines']:,}\n{one['sandboxes']:,}" for one in sizes]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name in sizes[0]["arrangements"]:
        shares = [one["arrangements"][name]["of_perfect"] for one in sizes]
        left.plot(range(len(sizes)), shares, "o-", label=name)
    left.set_xticks(range(len(sizes)), labels)
    left.set_ylabel("rate, as a share of an SDK that costs nothing")
    left.set_ylim(0, 1.05)
    left.set_xlabel("engines, sandboxes")
    left.legend(loc="lower left", fontsize=8)
    largest = next(one for one in reversed(sizes) if one["sandboxes"] == sizes[-1]["sandboxes"])
    bottom = [0.0] * len(largest["arrangements"])
    names = list(largest["arrangements"])
    whole = [
        sum(largest["arrangements"][name]["waits"].get(c, 0.0) for c in WAITS) for name in names
    ]
    for cause in WAITS:
        shares = [
            largest["arrangements"][name]["waits"].get(cause, 0.0) / seconds
            for name, seconds in zip(names, whole, strict=True)
        ]
        right.bar(names, shares, bottom=bottom, label=cause, width=0.6)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    labels = [f"{name}\n{seconds:,.0f} s" for name, seconds in zip(names, whole, strict=True)]
    right.set_xticks(range(len(names)), labels)
    right.set_ylabel("share of the time that a session has a place")
    right.set_title(
        f"{largest['engines']:,} engines, {largest['sandboxes']:,} sandboxes", fontsize=10
    )
    right.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most-sandboxes", type=int, default=100_000)
    parser.add_argument("--calibrate", type=int, default=240, help="sessions of each measurement")
    parser.add_argument("--costs", type=Path, help="take the costs of this file of an earlier run")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also draw them")
    given = parser.parse_args()
    if given.costs:
        costs = Costs(**json.loads(given.costs.read_text())["costs"])
    else:
        costs = measure(given.calibrate)
    print(
        f"a turn {1e3 * costs.turn:.2f} ms, a delivered session {1e3 * costs.delivery:.2f} ms, "
        f"its rows {1e3 * costs.rows:.2f} ms, {costs.turn_bytes:,.0f} bytes a turn"
    )
    sizes = [play(*size, costs) for size in SIZES if size[1] <= given.most_sandboxes]
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
        },
        "costs": costs.to_json(),
        "workload": asdict(Workload()),
        "cluster": asdict(Cluster(engines=1, sandboxes=1)),
        "sizes": sizes,
    }
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    if given.plot:
        plot(result, given.plot)


if __name__ == "__main__":
    main()
