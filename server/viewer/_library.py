"""The runs that a viewer shows, and their catalogues."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from trajgym.envs.faults import describe
from trajgym.trajectory import InvalidInput, Run, StoreError, TrajgymError
from trajgym.trajectory._internal import Closing
from trajgym.trajectory.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Library", "ShownRun"]

_log = logging.getLogger("trajgym.server.viewer")
_DEEPEST = 3
"""Levels of directories below the given one in which runs are found."""
_MOST_RUNS = 500
_IDLE_SECONDS = 60.0
"""A catalogue that no request has used for so long is not brought up to date."""


class ShownRun(NamedTuple):
    """A run and its name in addresses."""

    name: str
    path: Path


class Library(Closing):
    """The runs at a path, each with a catalogue that is opened when it is first asked for.

    Args:
        path: a run, or a directory that contains runs; it need not exist yet.
        place: gives a catalogue's file by the path of its run; the user's cache if None.
    """

    def __init__(self, path: Path, *, place: Callable[[Path], Path] | None = None) -> None:
        self.path = path
        self._place = place
        self._lock = threading.Lock()
        self._catalogs: dict[str, Catalog] = {}
        self._used: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._closed = False

    def runs(self) -> list[ShownRun]:
        """Return the runs at the path, by name."""
        if self.path.suffix == ".sqlite" or _is_run(self.path):
            return [ShownRun(_named(self.path), self.path)]
        found: dict[str, Path] = {}
        for path in _runs_below(self.path, _DEEPEST):
            name = "~".join(path.relative_to(self.path).parts)
            found[name] = path
        return [ShownRun(name, path) for name, path in sorted(found.items())]

    def path_of(self, name: str) -> Path:
        """Return the path of a run.

        Raises:
            InvalidInput: there is no run of that name.
        """
        for run in self.runs():
            if run.name == name:
                return run.path
        raise InvalidInput(f"{self.path}: no run {name!r}")

    def open(self, name: str) -> Run:
        """Open a run for reading."""
        return Run(self.path_of(name))

    def catalog(self, name: str) -> Catalog:
        """Return the catalogue of a run.

        Raises:
            InvalidInput: there is no run of that name.
            StoreError: the catalogue can't be written, or the viewer is closed.
        """
        path = self.path_of(name)
        with self._lock:
            if self._closed:
                raise StoreError(f"{self.path}: the viewer is closed")
            self._used[name] = time.monotonic()
            if name not in self._catalogs:
                place = None if self._place is None else self._place(path)
                self._catalogs[name] = Catalog(path, path=place)
            return self._catalogs[name]

    def error(self, name: str) -> str:
        """Return why a run could not be read any further; empty if it could."""
        return self._errors.get(name, "")

    def refresh(self, seconds: float = 0.3) -> bool:
        """Bring the catalogues in use up to date; return whether they are complete."""
        with self._lock:
            recent = time.monotonic() - _IDLE_SECONDS
            catalogs = [(n, c) for n, c in self._catalogs.items() if self._used[n] > recent]
        complete = True
        for name, catalog in catalogs:
            try:
                complete &= catalog.refresh(seconds)
                self._errors.pop(name, None)
            except Exception as error:  # noqa: BLE001 - boundary: one run must not end the others
                cause = str(error) if isinstance(error, TrajgymError) else describe(error)
                if self._errors.get(name) != cause:
                    known = isinstance(error, TrajgymError)
                    _log.warning("run %s: %s", name, cause, exc_info=None if known else error)
                self._errors[name] = cause
        return complete

    def describe(self) -> list[dict[str, Any]]:
        """Return the runs for a list: name, path, and when they were last written."""
        found = []
        for run in self.runs():
            files = [run.path] if run.path.is_file() else list(run.path.glob("*.sqlite*"))
            times = [t for file in files if (t := _modified(file)) is not None]
            found.append(
                {"name": run.name, "path": str(run.path), "changed": max(times, default=None)}
            )
        return found

    def close(self) -> None:
        """Close the catalogues. Idempotent."""
        with self._lock:
            self._closed = True
            catalogs, self._catalogs = self._catalogs, {}
        for catalog in catalogs.values():
            catalog.close()


def _is_run(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*.sqlite"))


def _named(path: Path) -> str:
    return path.resolve().name.removesuffix(".sqlite") or "run"


def _runs_below(path: Path, levels: int) -> list[Path]:
    found: list[Path] = []
    try:
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []
    for folder in folders:
        if len(found) >= _MOST_RUNS:
            break
        if _is_run(folder):
            found.append(folder)
        elif levels > 1:
            found += _runs_below(folder, levels - 1)
    return found


def _modified(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None
