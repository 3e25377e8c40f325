"""What the processes of a fleet use, read from ``/proc``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process used at a moment.

    Args:
        at: seconds since the beginning.
        ended: sessions of the fleet that had ended.
        role: ``parent``, or ``worker 0`` by the number of its file.
        pid: of the process.
        memory: resident bytes.
        descriptors: open ones.
        threads: of the process.
        mounts: of its sandboxes, in the mount namespaces of its threads; the largest number.
        cpu: seconds of CPU so far.
    """

    at: float
    ended: int
    role: str
    pid: int
    memory: int
    descriptors: int
    threads: int
    mounts: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Machine:
    """A fleet's process and what it starts.

    Args:
        parent: the fleet's process.
        run: the run directory.
        sandboxes: directory of embedded sandboxes.
        temporary: ``TMPDIR`` of the fleet.
    """

    parent: int
    run: Path
    sandboxes: Path
    temporary: Path
    _names: dict[int, str] = field(default_factory=dict)

    def workers(self) -> dict[str, int]:
        """Return the pids of the workers by their role."""
        found = {}
        for pid in children(self.parent):
            if pid not in self._names and (name := _shard(pid)):
                self._names[pid] = name
            if pid in self._names:
                found[self._names[pid]] = pid
        return found

    def sample(self, at: float, ended: int) -> list[Sample]:
        """Return what the parent and each worker use now."""
        found = []
        for role, pid in {"parent": self.parent, **self.workers()}.items():
            try:
                found.append(_sample(at, ended, role, pid, self.sandboxes))
            except (OSError, IndexError):
                continue  # it has just ended
        return found

    def totals(self) -> dict[str, Any]:
        """Return what they have together: processes, folders, files and bytes."""
        return {
            "sandbox_processes": sum(len(below(pid)) for pid in self.workers().values()),
            "sandbox_folders": _count(self.sandboxes),
            "temporary_files": _count(self.temporary),
            "shards": {
                path.name: path.stat().st_size for path in sorted(self.run.glob("*.sqlite"))
            },
        }


def _sample(at: float, ended: int, role: str, pid: int, sandboxes: Path) -> Sample:
    folder = Path(f"/proc/{pid}")
    stat = (folder / "stat").read_text().rpartition(")")[2].split()
    return Sample(
        at=round(at, 2),
        ended=ended,
        role=role,
        pid=pid,
        memory=int((folder / "statm").read_text().split()[1]) * _PAGE,
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(stat[17]),
        mounts=max(_mounts(pid, str(sandboxes)), default=0),
        cpu=(int(stat[11]) + int(stat[12])) / _TICKS,
    )


def _mounts(pid: int, folder: str) -> list[int]:
    """Return how many mounts of a folder each mount namespace of a process's threads has."""
    spaces = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spaces[str((task / "ns/mnt").readlink())] = task
        except OSError:
            continue
    return [(task / "mountinfo").read_text().count(folder) for task in spaces.values()]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started; none if it is gone."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        return found
    return found


def below(pid: int) -> list[int]:
    """Return all processes below a process."""
    found, waiting = [], children(pid)
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children(one)
    return found


def _shard(pid: int) -> str:
    """Return ``worker 0`` for the process that writes ``worker-0.sqlite``; else nothing."""
    try:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            name = handle.readlink().name
            if name.startswith("worker-") and name.endswith(".sqlite"):
                return name.removesuffix(".sqlite").replace("-", " ")
    except OSError:
        return ""
    return ""


def _count(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def slope(samples: list[Sample], name: str) -> float:
    """Return by how much a figure grows in 1,000 sessions, over the second half of a process."""
    half = [one for one in samples if one.ended >= (samples[0].ended + samples[-1].ended) / 2]
    if len({one.ended for one in half}) < 3:
        return 0.0
    x = np.array([one.ended for one in half], dtype=float)
    y = np.array([getattr(one, name) for one in half], dtype=float)
    return float(np.polyfit(x, y, 1)[0] * 1000)
