"""TensorBoard event files; neither TensorFlow nor PyTorch is needed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trajgym.adapters.tracking._base import Tracker

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["TensorboardTracker"]

_STRING = 7  # DT_STRING of TensorFlow's types


class TensorboardTracker(Tracker):
    """Writes scalars, and the configuration as text, into ``directory/name``."""

    def __init__(self, project: str, directory: os.PathLike[str] | str) -> None:
        del project
        self._directory = Path(directory)

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """See :meth:`Tracker.start`."""
        self._writer = EventFileWriter(str(self._directory / name))
        text = f"```json\n{json.dumps(config, indent=1, default=str)}\n```"
        tensor = TensorProto(dtype=_STRING, string_val=[text.encode()])
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        value = Summary.Value(
            tag="config", metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor
        )
        self._write(Summary(value=[value]), 0)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See :meth:`Tracker.log`."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._write(Summary(value=values), step)

    def finish(self) -> None:
        """See :meth:`Tracker.finish`."""
        self._writer.close()

    def _write(self, summary: Any, step: int) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
