"""The example for AReaL without GPUs: its configuration and its arguments."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.timeout(600)
def test_the_example_runs_in_areals_executor(
    tiny: Any,
    server: Any,
    engine: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AReaL reads the YAML, and its executor runs a group of the game with the script's arguments.

    Only the servers and the actor's update, which need GPUs, are left out.
    """
    from areal.api.cli_args import GRPOConfig, parse_cli_args, to_structured_cfg
    from omegaconf import OmegaConf

    from trajgym.adapters.areal import TrajgymWorkflow, task_dataset

    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    spec = importlib.util.spec_from_file_location("train", EXAMPLES / "areal" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    file = str(EXAMPLES / "areal" / "guess.yaml")
    parsed, _ = parse_cli_args(["--config", file, f"actor.path={tiny.path}"])
    config = OmegaConf.to_object(to_structured_cfg(parsed, config_cls=GRPOConfig))
    given = script.arguments(config)
    assert json.loads(json.dumps(given)) == given
    made = TrajgymWorkflow(**given | {"store": str(tmp_path)})
    assert made._settings.gconfig.max_new_tokens == 16
    assert made._settings.run.samples == 8
    del server  # the engine's
    (rows,) = engine().rollout_batch(
        [task_dataset(script.tasks(1))[0]],
        workflow="trajgym.adapters.areal.TrajgymWorkflow",
        workflow_kwargs=given | {"store": str(tmp_path / "run")},
    )
    assert rows["input_ids"].shape[0] == 8
    assert rows["loss_mask"].sum() > 0
