"""Trackio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trackio

from trajgym.adapters.tracking._base import Tracker

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["TrackioTracker"]


class TrackioTracker(Tracker):
    """Logs to a trackio project: on this machine, or in the Space ``TRACKIO_SPACE_ID``."""

    def __init__(self, project: str, directory: os.PathLike[str] | str) -> None:
        del directory  # trackio uses its own, see TRACKIO_DIR
        self._project = project

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """See :meth:`Tracker.start`."""
        self._run: Any = trackio.init(
            project=self._project,
            name=name,
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See :meth:`Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """See :meth:`Tracker.finish`."""
        self._run.finish()
