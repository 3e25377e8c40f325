"""Control groups of embedded sandboxes, version 1 and 2, where this process may make them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trajgym.envs.sandbox._owner import is_dead

if TYPE_CHECKING:
    from trajgym.envs.sandbox._base import Limits

__all__ = ["ControlGroup", "ControlGroups"]

PARENT = "trajgym"
CPU_PERIOD = 100_000


def _mounts() -> dict[str, Path]:
    """Return where each controller is mounted; version 2 has the empty name."""
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            where = Path(before.split(" ")[4])
            if kind == "cgroup2":
                found.setdefault("", where)
            elif kind == "cgroup":
                for name in options.split(","):
                    found.setdefault(name, where)
    return found


def _write(path: Path, value: object) -> bool:
    try:
        path.write_text(str(value))
    except OSError:
        return False
    return True


def _remove(folder: Path) -> None:
    """Kill what is left in a group and remove it; a killed process may take a moment to exit."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            _write(folder / "cgroup.kill", 1)
            with contextlib.suppress(OSError, ValueError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)
        else:
            return


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control groups of one sandbox.

    Args:
        folders: one for each hierarchy.
        bounds: what they limit: ``memory``, ``pids``, ``cpu``.
    """

    folders: tuple[Path, ...] = ()
    bounds: frozenset[str] = frozenset()

    @property
    def entrances(self) -> list[str]:
        """Files to which a process with one thread writes 0 to enter the groups."""
        # Version 1 moves a single thread at once; for a whole process the kernel first waits until
        # no other on this host forks or exits, some milliseconds each time.
        threads = [folder / "tasks" for folder in self.folders]
        return [str(path if path.exists() else path.with_name("cgroup.procs")) for path in threads]

    def oom_kills(self) -> int:
        """Return how many processes the memory limit has killed so far."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    for line in (folder / name).read_text().splitlines():
                        key, _, value = line.partition(" ")
                        if key == "oom_kill":
                            return int(value)
        return 0

    def stop(self) -> None:
        """Freeze all processes in them. Blocks for a moment."""
        stopped: set[int] = set()
        for _ in range(20):
            found = self._processes() - stopped
            if not found:
                return
            self._signal(found, signal.SIGSTOP)
            stopped |= found

    def resume(self) -> None:
        """Thaw the frozen processes."""
        self._signal(self._processes(), signal.SIGCONT)

    def _processes(self) -> set[int]:
        for folder in self.folders[:1]:
            with contextlib.suppress(OSError, ValueError):
                return {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return set()

    def _signal(self, pids: set[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def remove(self) -> None:
        """Kill what is left in them and remove them. Blocks for up to a second."""
        for folder in self.folders:
            _remove(folder)


@dataclass(slots=True)
class ControlGroups:
    """Creates the groups of sandboxes under one parent group in each hierarchy."""

    mounts: dict[str, Path] = field(default_factory=_mounts)

    def create(self, name: str, limits: Limits) -> ControlGroup:
        """Create groups with these limits; limits that can't be set are left out of ``bounds``."""
        if "memory" in self.mounts:
            return self._create_v1(name, limits)
        return self._create_v2(name, limits)

    def _create_v1(self, name: str, limits: Limits) -> ControlGroup:
        wanted: dict[str, list[tuple[str, object]]] = {
            "memory": [
                ("memory.limit_in_bytes", limits.memory),
                ("memory.memsw.limit_in_bytes", limits.memory),
            ],
            "pids": [("pids.max", limits.pids)],
            "cpu": [
                ("cpu.cfs_period_us", CPU_PERIOD),
                ("cpu.cfs_quota_us", int(limits.cpus * CPU_PERIOD)),
            ],
        }
        folders, bounds = [], set()
        for controller, settings in wanted.items():
            if controller not in self.mounts:
                continue
            folder = self.mounts[controller] / PARENT / name
            try:
                folder.mkdir(parents=True)
            except OSError:
                continue
            # Swap accounting may be switched off: then this file does not exist.
            done = [_write(folder / file, value) for file, value in settings]
            if not any(done) or not os.access(folder / "cgroup.procs", os.W_OK):
                _remove(folder)
                continue
            folders.append(folder)
            bounds.add(controller)
        return ControlGroup(tuple(folders), frozenset(bounds))

    def _create_v2(self, name: str, limits: Limits) -> ControlGroup:
        if "" not in self.mounts:
            return ControlGroup()
        parent = self.mounts[""] / PARENT
        folder = parent / name
        try:
            parent.mkdir(exist_ok=True)
            for controller in ("memory", "pids", "cpu"):
                _write(self.mounts[""] / "cgroup.subtree_control", f"+{controller}")
                _write(parent / "cgroup.subtree_control", f"+{controller}")
            folder.mkdir()
        except OSError:
            return ControlGroup()
        bounds = set()
        if _write(folder / "memory.max", limits.memory):
            _write(folder / "memory.swap.max", 0)
            bounds.add("memory")
        if _write(folder / "pids.max", limits.pids):
            bounds.add("pids")
        if _write(folder / "cpu.max", f"{int(limits.cpus * CPU_PERIOD)} {CPU_PERIOD}"):
            bounds.add("cpu")
        if not bounds:
            _remove(folder)
            return ControlGroup()
        return ControlGroup((folder,), frozenset(bounds))

    def reap(self) -> None:
        """Remove groups whose sandbox's process has exited (its token is part of their name)."""
        for mount in set(self.mounts.values()):
            parent = mount / PARENT
            if not parent.is_dir():
                continue
            for folder in parent.iterdir():
                if folder.is_dir() and is_dead(folder.name.partition("-")[0]):
                    _remove(folder)
