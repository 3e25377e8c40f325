"""MLflow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from trajgym.adapters.tracking._base import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MlflowTracker"]

_LONGEST = 500
"""Length of a parameter's value that every MLflow server accepts."""


class MlflowTracker(Tracker):
    """Logs to an MLflow experiment, at ``MLFLOW_TRACKING_URI`` or in files in the directory."""

    def __init__(self, project: str, directory: os.PathLike[str] | str) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or Path(directory).resolve().as_uri()
        self._project = project
        self._client = MlflowClient(tracking_uri=uri)

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """See :meth:`Tracker.start`."""
        found = self._client.get_experiment_by_name(self._project)
        experiment = (
            self._client.create_experiment(self._project) if found is None else found.experiment_id
        )
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        params = [Param(key, json.dumps(value)[:_LONGEST]) for key, value in config.items()]
        self._client.log_batch(self._run, params=params)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See :meth:`Tracker.log`."""
        now = int(time.time() * 1000)
        values = [Metric(key, value, now, step) for key, value in metrics.items()]
        self._client.log_batch(self._run, metrics=values)

    def finish(self) -> None:
        """See :meth:`Tracker.finish`."""
        self._client.set_terminated(self._run)
