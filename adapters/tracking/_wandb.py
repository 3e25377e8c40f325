"""Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wandb

from trajgym.adapters.tracking._base import Tracker

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["WandbTracker"]


class WandbTracker(Tracker):
    """Logs to a run of a wandb project; ``WANDB_MODE=offline`` keeps it in the directory."""

    def __init__(self, project: str, directory: os.PathLike[str] | str) -> None:
        self._project, self._directory = project, directory

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """See :meth:`Tracker.start`."""
        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            project=self._project,
            name=name,
            config=dict(config),
            dir=str(self._directory),
            settings=settings,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See :meth:`Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """See :meth:`Tracker.finish`."""
        self._run.finish()
