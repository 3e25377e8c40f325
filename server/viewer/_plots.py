"""The plots of the shown runs, counted in the background while someone looks at them."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from trajgym.envs.faults import describe
from trajgym.rollout.plots import PlotCount
from trajgym.trajectory import Run, TrajgymError
from trajgym.trajectory._internal import Closing

if TYPE_CHECKING:
    from pathlib import Path

    from trajgym.server.viewer._library import Library

__all__ = ["RunPlots"]

_log = logging.getLogger("trajgym.server.viewer")
_IDLE_SECONDS = 60.0
"""Plots that no request has asked for in so long are not counted."""
_GROWTH = 1.25
"""Plots of a part of a run are shown anew when it has so many times the sessions."""
_PAUSE = 4.0
"""Seconds until a run that changed is counted again, per second that counting it took."""
_SHORTEST_PAUSE = 1.0

_Files: TypeAlias = "tuple[tuple[str, int, int], ...]"


@dataclass(slots=True)
class _Counted:
    """The plots of a run, and the count that is in progress."""

    path: Path
    asked: float = 0.0
    version: int = 0
    plots: list[dict[str, Any]] = field(default_factory=list)
    shown: int = 0
    """Sessions that the plots are of."""
    complete: bool = False
    """Whether the plots are of the whole run as it was when the count began."""
    error: str = ""
    files: _Files = ()
    """What the files were when the last count began."""
    run: Run | None = None
    count: PlotCount | None = None
    begun: float = 0.0
    again: float = 0.0
    """When a further count may begin."""


class RunPlots(Closing):
    """The plots of the runs of a library; counting a large run takes minutes, so it is in parts.

    :meth:`advance` is called by one thread, the other methods by any.

    Args:
        library: whose runs are counted.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._working = threading.Lock()
        self._known: dict[str, _Counted] = {}
        self._closed = False

    def describe(self, name: str, *, after: int | None = None) -> dict[str, Any]:
        """Return the plots of a run as far as it has been counted, and request that it is.

        Args:
            name: of the run.
            after: version that the client has; if there is no newer one, plots are left out.

        Raises:
            InvalidInput: there is no such run.
        """
        path = self._library.path_of(name)
        with self._lock:
            one = self._known.setdefault(name, _Counted(path))
            one.asked = time.monotonic()
            found: dict[str, Any] = {
                "version": one.version,
                "sessions": one.shown,
                "counted": one.count.sessions if one.count is not None else one.shown,
                "complete": one.complete,
                "error": one.error,
            }
            return found if after == one.version else found | {"plots": one.plots}

    def advance(self, seconds: float = 0.3) -> bool:
        """Count requested runs for about so long each; return whether there is nothing to do."""
        recent = time.monotonic() - _IDLE_SECONDS
        with self._lock:
            wanted = [one for one in self._known.values() if one.asked > recent]
        idle = True
        for one in wanted:
            with self._working:
                if self._closed:
                    return True
                try:
                    idle &= self._advance(one, seconds)
                except TrajgymError as error:
                    self._end(one)
                    one.error = str(error)
                except Exception as error:  # noqa: BLE001 - boundary: one run must not end the others
                    _log.exception("the plots of %s", one.path)
                    self._end(one)
                    one.error = describe(error)
        return idle

    def _advance(self, one: _Counted, seconds: float) -> bool:
        now = time.monotonic()
        if one.count is None:
            files = _files(one.path)
            if now < one.again or files == one.files:
                return True
            one.files, one.begun = files, now
            one.run = Run(one.path)
            one.count = PlotCount(one.run)
        complete = one.count.advance(seconds)
        if complete or (not one.complete and one.count.sessions >= _GROWTH * one.shown):
            plots = [plot.to_json() for plot in one.count.plots()]
            with self._lock:
                one.plots, one.shown, one.complete = plots, one.count.sessions, complete
                one.version += 1
                one.error = ""
        if complete:
            self._end(one)
        return complete

    def _end(self, one: _Counted) -> None:
        now = time.monotonic()
        one.again = now + max(_SHORTEST_PAUSE, _PAUSE * (now - one.begun))
        if one.run is not None:
            one.run.close()
        one.run = one.count = None

    def close(self) -> None:
        """Close the files. Idempotent; waits for a call in another thread."""
        with self._working:
            self._closed = True
            for one in self._known.values():
                self._end(one)


def _files(path: Path) -> _Files:
    """Return names, sizes and times of the files that a run is written to."""
    found = []
    paths = [path] if path.is_file() else path.glob("*.sqlite")
    for base in sorted(paths):
        for file in (base, base.with_name(f"{base.name}-wal")):
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            found.append((file.name, status.st_size, status.st_mtime_ns))
    return tuple(found)
