"""Exports stream: four times the sessions need no more memory."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.adapters.build import exact_session
from trajgym.adapters import export
from trajgym.adapters.exports import _files
from trajgym.rewards import Advantages, OutcomeReturn, OutcomeReward, Rewards, TurnTable
from trajgym.trajectory import Group, Member, SessionTree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def run(n: int) -> Iterator[SessionTree]:
    for i in range(n):
        yield exact_session(
            f"s{i}", float(i % 2), group=f"g{i // 2}", sample=i % 2, answers=str(i), tokens=400
        )


def groups(n: int) -> list[Group]:
    return [
        Group(
            id=f"g{i}",
            task="t",
            planned=2,
            members=[Member(f"s{2 * i}", 0), Member(f"s{2 * i + 1}", 1)],
            sealed=True,
        )
        for i in range(n // 2)
    ]


def values(name: str, n: int) -> Rewards | Advantages | tuple[()]:
    table = TurnTable.build(groups(n), run(n))
    if name == "trl-grpo":
        return OutcomeReturn().derive(table)
    return OutcomeReward().derive(table) if name in {"verl", "areal", "rows"} else ()


def peak(name: str, n: int, out: Path) -> int:
    """Peak bytes that an export of ``n`` sessions holds beyond its arguments."""
    given = groups(n), values(name, n)
    tracemalloc.start()
    report = export(name, run(n), given[0], out, values=given[1])
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.written >= n // 2
    return top


@pytest.mark.parametrize(
    "name", ["rows", "trl-grpo", "verl", "verl-sft", "areal", "sft", "preference"]
)
def test_memory_is_flat(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory does not follow the number of sessions, in Python or in Arrow."""
    monkeypatch.setattr(_files, "_ROWS_PER_GROUP", 16)
    peak(name, 32, tmp_path)  # imports and caches
    small, large = peak(name, 64, tmp_path), peak(name, 256, tmp_path)
    assert large < 1.3 * small + 200_000, (small, large)
    assert pa.total_allocated_bytes() < 2_000_000
