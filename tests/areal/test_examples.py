"""The example for AReaL without GPUs: its configuration and its arguments."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.areal.test_workflow import loader

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def arguments(script: Path, file: Path, model: str) -> dict[str, Any]:
    """Return a script's arguments of the workflow, made from its configuration."""
    from areal.api.cli_args import GRPOConfig, parse_cli_args, to_structured_cfg
    from omegaconf import OmegaConf

    spec = importlib.util.spec_from_file_location("train", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parsed, _ = parse_cli_args(["--config", str(file), f"actor.path={model}"])
    config = OmegaConf.to_object(to_structured_cfg(parsed, config_cls=GRPOConfig))
    given: dict[str, Any] = module.arguments(config)
    assert json.loads(json.dumps(given)) == given
    return given


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
    from trajgym.adapters.areal import TrajgymWorkflow, task_dataset

    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    from guess import tasks

    folder = EXAMPLES / "areal"
    given = arguments(folder / "train.py", folder / "guess.yaml", tiny.path)
    made = TrajgymWorkflow(**given | {"store": str(tmp_path)})
    assert made._settings.gconfig.max_new_tokens == 16
    assert made._settings.run.samples == 8
    del server  # the engine's
    (rows,) = engine().rollout_batch(
        [task_dataset(tasks(1))[0]],
        workflow="trajgym.adapters.areal.TrajgymWorkflow",
        workflow_kwargs=given | {"store": str(tmp_path / "run")},
    )
    assert rows["input_ids"].shape[0] == 8
    assert rows["loss_mask"].sum() > 0


def test_small_swe_sessions_are_those_that_the_engine_answered(
    tiny: Any,
    engine: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A group runs in the sandbox through AReaL's executor; turns equal the engine's answers."""
    folder = EXAMPLES / "trainers"
    places = [str(folder / "shared"), str(folder / "areal")]
    monkeypatch.setattr(sys, "path", [*places, *sys.path])
    monkeypatch.setenv("ANSWERS", str(tmp_path / "answers"))
    import sessions
    from recorded_workflow import RecordedWorkflow
    from small_swe import tasks

    given = arguments(folder / "areal" / "train.py", folder / "areal" / "train.yaml", tiny.path)
    given |= {"store": str(tmp_path / "runs"), "samples": 2, "budgets": {"turns": 3}}
    given["gconfig"] |= {"max_new_tokens": 8}
    client = engine(consumer_batch_size=1)
    found = client.prepare_batch(loader(tasks(1), batch=1), RecordedWorkflow(**given))
    assert found
    wanted = ["--store", str(tmp_path / "runs"), "--answers", str(tmp_path / "answers")]
    sessions.main(sessions.parser().parse_args([*wanted, "--out", str(tmp_path / "out.jsonl")]))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    ended = [line for line in lines if line["ended"] is not None]
    assert len(ended) >= 2
    assert all(line["same"] == line["turns"] > 0 for line in ended)
    assert all(line["score"] == 0 for line in ended)
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["turns"] == sum(line["turns"] for line in lines)
