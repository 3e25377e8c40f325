"""Trackers, each read back with the tracker's own reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import worlds
from trajgym.adapters.tracking import RunMetrics, Tracker, Tracking, open_tracker
from trajgym.envs import EnvSpec
from trajgym.rollout import TokenPolicy, call, collect
from trajgym.rollout.evaluation import Price, Prices
from trajgym.trajectory import InvalidInput, Task, TrajgymError
from trajgym.trajectory._internal import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

assert worlds.Counter
TASKS = [Task(id="a"), Task(id="b")]
PRICES = Prices({"fake": Price(1.0, 2.0)})


async def tracked(tracker: Tracker, out: Path, **options: Any) -> Tracking:
    """Collect two tasks, twice each, under a tracker."""
    policy = TokenPolicy.fake([call("add", n=3), "Done."] * 8)
    with Tracking(tracker, name="first", config={"env": "counter"}, **options) as tracking:
        spec = EnvSpec(id="test/counter")
        await collect(spec, TASKS, policy, out, samples=2, concurrency=1, on_progress=tracking.note)
    return tracking


class Memory(Tracker):
    """Keeps what it is given."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = False

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        self.started = (name, dict(config))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self.breaks:
            raise ConnectionError("gone")
        self.logged.append((dict(metrics), step))

    def finish(self) -> None:
        self.finished = True


async def test_metrics_follow_the_sessions(tmp_path: Path) -> None:
    """Each session that ends is a step, with its own metrics and those of the run so far."""
    memory = Memory()
    await tracked(memory, tmp_path / "run", prices=PRICES)
    assert memory.started == ("first", {"env": "counter"})
    assert memory.finished
    assert [step for _, step in memory.logged] == [1, 2, 3, 4]
    last = memory.logged[-1][0]
    assert last["run/sessions"] == 4
    assert last["run/failed"] == 0
    assert 0 <= last["run/solved"] <= 1
    own = [metrics["session/completion_tokens"] for metrics, _ in memory.logged]
    assert sum(own) == last["run/completion_tokens"] > 0
    costs = [metrics["session/cost"] for metrics, _ in memory.logged]
    assert sum(costs) == pytest.approx(last["run/cost"])


async def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    """The run is complete, and the failure is kept to be shown."""
    memory = Memory(breaks=True)
    tracking = await tracked(memory, tmp_path / "run")
    assert tracking.error == "the tracker failed: ConnectionError: gone"
    assert tracking._metrics.step == 4


async def test_a_tracker_that_exits_has_failed(tmp_path: Path) -> None:
    """Whatever it raises is the failure that is kept, and it is closed with what it had."""

    class Exiting(Memory):
        def log(self, metrics: Mapping[str, float], step: int) -> None:
            if self.logged:
                raise SystemExit("not logged in")
            super().log(metrics, step)

        def finish(self) -> None:
            super().finish()
            raise ConnectionError("and not closed")

    tracker = Exiting()
    tracking = await tracked(tracker, tmp_path)
    assert "not logged in" in tracking.error
    assert tracker.finished
    assert len(tracker.logged) == 1


async def test_a_tracker_that_cannot_start_is_an_error_before_the_run(tmp_path: Path) -> None:
    """Wrong credentials and the like stop before the first session."""

    class Closed(Memory):
        def start(self, name: str, config: Mapping[str, Any]) -> None:
            raise PermissionError("log in first")

    with pytest.raises(TrajgymError, match="log in first"):
        await tracked(Closed(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_and_missing_trackers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong name lists the others; a missing package names its extra."""
    with pytest.raises(InvalidInput, match="mlflow, tensorboard, trackio, wandb"):
        open_tracker("comet", directory=tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "trajgym.adapters.tracking._wandb", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'trajgym\[wandb\]'"):
        open_tracker("wandb", directory=tmp_path)


async def test_tensorboard(tmp_path: Path) -> None:
    """Scalars are in the event file, under their steps."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = open_tracker("tensorboard", directory=tmp_path / "logs")
    tracking = await tracked(tracker, tmp_path / "run")
    assert tracking.error == ""
    events = EventAccumulator(str(tmp_path / "logs" / "first"))
    events.Reload()
    assert [event.step for event in events.Scalars("run/sessions")] == [1, 2, 3, 4]
    assert [event.value for event in events.Scalars("run/sessions")] == [1, 2, 3, 4]
    assert "counter" in events.Tensors("config")[0].tensor_proto.string_val[0].decode()


async def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics and settings are in the file store, and the run has ended."""
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = tmp_path / "logs"
    tracking = await tracked(
        open_tracker("mlflow", project="mine", directory=store), tmp_path / "run"
    )
    assert tracking.error == ""
    client = MlflowClient(tracking_uri=store.as_uri())
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert json.loads(run.data.params["env"]) == "counter"
    history = client.get_metric_history(run.info.run_id, "run/sessions")
    assert [(metric.step, metric.value) for metric in history] == [(n, n) for n in (1, 2, 3, 4)]


WANDB = """
import sys
from trajgym.adapters.tracking import Tracking, open_tracker
from trajgym.rollout import Progress

with Tracking(open_tracker("wandb", directory=sys.argv[1]), name="first") as tracking:
    for n in range(3):
        tracking.note(Progress("ended", f"s{n}", "t", "completed", 1.0))
assert tracking.error == "", tracking.error
"""


def test_wandb_offline(tmp_path: Path) -> None:
    """Offline, the run is a folder whose record file holds the metrics once the process ended."""
    pytest.importorskip("wandb")
    command = [sys.executable, "-c", WANDB, str(tmp_path)]
    done = subprocess.run(
        command, env=os.environ | {"WANDB_MODE": "offline"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("*.wandb")
    assert file.read_bytes().count(b"run/sessions") >= 3


async def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine, trackio's own reader finds the metrics."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "logs"))
    trackio = pytest.importorskip("trackio")
    tracking = await tracked(
        open_tracker("trackio", project="mine", directory=tmp_path), tmp_path / "run"
    )
    assert tracking.error == ""
    (run,) = trackio.Api().runs("mine")
    assert run.name == "first"


def test_metrics_without_prices_have_no_costs() -> None:
    """A cost that is not known is left out, never 0."""
    from trajgym.rollout import Progress

    metrics = RunMetrics().note(Progress("ended", "s", "t", "completed", 1.0))
    assert metrics is not None
    assert not any(name.endswith("cost") for name in metrics)
    assert (metrics["session/score"], metrics["run/solved"]) == (1.0, 1.0)
