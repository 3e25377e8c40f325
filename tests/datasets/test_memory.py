"""Operations and exports of runs stream: four times the sessions need hardly more memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.datasets.runs import tree, write_run
from trajgym.adapters.exports.dataset import _tables, read_dataset, write_dataset
from trajgym.trajectory import Task
from trajgym.trajectory.datasets import dedup_run, filter_run, merge_runs, split_run

OPERATIONS: dict[str, Callable[[Path, Path], object]] = {
    "merge": lambda run, out: merge_runs([run], out),
    "split": lambda run, out: split_run(run, out, {"a": 0.5, "b": 0.5}),
    "filter": lambda run, out: filter_run(run, out, "solve_rate > 0 and data.n >= 0"),
    "dedup": lambda run, out: dedup_run(run, out),
    "export": write_dataset,
    "import": lambda run, out: (
        write_dataset(run, out / "data"),
        read_dataset(out / "data", out / "run"),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_is_flat(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of 20 kB adds less than 2 kB to the peak: its id, and digests."""
    monkeypatch.setattr(_tables, "_ROWS_PER_GROUP", 16)
    peaks = []
    for n in (16, 64, 256):
        run = write_run(
            tmp_path / f"run-{n}",
            (tree(f"s{i}", task=f"t{i}", says=[f"{i} " * 1000] * 8) for i in range(n)),
            tasks=[Task(id=f"t{i}", data={"n": i}) for i in range(n)],
        )
        tracemalloc.start()
        OPERATIONS[name](run, tmp_path / f"out-{n}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    _, small, large = peaks  # the first one imports and fills caches
    assert large - small < 192 * 2_000, peaks
    assert pa.total_allocated_bytes() < 4_000_000
