"""The interface of a tracker, and the trackers by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from trajgym.trajectory import InvalidInput
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["Tracker", "list_trackers", "open_tracker"]

_TRACKERS = {
    "mlflow": ("_mlflow", "MlflowTracker"),
    "tensorboard": ("_tensorboard", "TensorboardTracker"),
    "trackio": ("_trackio", "TrackioTracker"),
    "wandb": ("_wandb", "WandbTracker"),
}


class Tracker(ABC):
    """Receives the metrics of one run. Its methods are called sequentially and may block."""

    @abstractmethod
    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """Open the run.

        Args:
            name: name of the run.
            config: settings of the run, as JSON values.
        """

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record metrics at a step; steps never decrease."""

    @abstractmethod
    def finish(self) -> None:
        """Flush and close the run."""


def list_trackers() -> list[str]:
    """Return the names of the trackers, in order."""
    return sorted(_TRACKERS)


def open_tracker(
    name: str, *, project: str = "trajgym", directory: os.PathLike[str] | str
) -> Tracker:
    """Return a tracker that is not started.

    The address and credentials of a service are configured as described in the tracker's own
    documentation, by environment variables such as ``WANDB_MODE`` or ``MLFLOW_TRACKING_URI``.

    Args:
        name: ``mlflow``, ``tensorboard``, ``trackio`` or ``wandb``.
        project: project or experiment of the runs.
        directory: directory of the tracker's local files, if it has any.

    Raises:
        InvalidInput: there is no such tracker.
        MissingExtra: its package is not installed.
    """
    if name not in _TRACKERS:
        raise InvalidInput(f"no tracker {name!r}; there are {', '.join(list_trackers())}")
    module, kind = _TRACKERS[name]
    try:
        found = importlib.import_module(f"trajgym.adapters.tracking.{module}")
    except ImportError as error:
        raise MissingExtra(error.name or name, name) from error
    tracker: Tracker = getattr(found, kind)(project, directory)
    return tracker
