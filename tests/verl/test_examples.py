"""The examples and the page about verl, as a reader uses them."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.trl.tiny import Tiny
from tests.verl.chain import ROOT, loop_of, sampling
from tests.verl.fake import FakeServers
from trajgym.adapters import lint, verl
from trajgym.trajectory import InvalidInput

FOLDER = ROOT / "examples" / "verl"
TRAINERS = {
    "sync": "StepSyncTrainer",
    "colocate_async": "StepColocateAsyncTrainer",
    "separate_async": "StepSeparateAsyncTrainer",
}


@pytest.mark.parametrize("mode", TRAINERS)
def test_each_configuration_makes_its_trainer(
    tiny: Tiny, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verl composes the file, lint has no findings, the trainer is made, and a game gives rows.

    Only the servers and the actor's update, which need GPUs, are left out.
    """
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import get_trainer_cls

    done = subprocess.run(
        [sys.executable, str(FOLDER / "prepare.py"), "--out", "data", "--games", "4"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "examples")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with initialize_config_dir(config_dir=str(FOLDER), version_base=None):
        config = compose(mode, overrides=[f"actor_rollout_ref.model.path={tiny.path}"])
    whole = tmp_path / "whole.yaml"
    OmegaConf.save(config, whole, resolve=True)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    data = tmp_path / "data" / "train.parquet"
    for file in (FOLDER / f"{mode}.yaml", whole):
        assert lint("verl", file, [data]) == []
    kind = get_trainer_cls(config.trainer.v1.trainer_mode)
    assert kind is getattr(verl, TRAINERS[mode])
    trainer: Any = kind(config)
    assert trainer.trainer_mode == mode
    plain: Any = OmegaConf.to_container(config, resolve=True)
    if mode == "sync":
        assert verl.ReplayShape.of(plain).samples == 8
    else:
        with pytest.raises(InvalidInput, match="use sync"):
            verl.ReplayShape.of(plain)
    config.trajgym.store = str(tmp_path / "run")
    given = pq.read_table(data).to_pylist()[0]
    rollout = {"uid": "u1", "session_id": 0, "global_steps": 0, **given}
    outputs = asyncio.run(loop_of(config, tiny, FakeServers()).run(sampling(), **rollout))
    assert all(sum(one.response_mask) > 0 for one in outputs)
    carried = json.loads(outputs[-1].extra_fields["trajgym"])
    assert carried["table"]
    assert len(outputs) >= (2 if mode == "separate_async" else 1)


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_small_swe_configurations(tiny: Tiny, mode: str, tmp_path: Path) -> None:
    """The tasks select the recording loop, which verl can load, and the linter has no findings."""
    from hydra import compose, initialize_config_dir
    from hydra.utils import get_class
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import get_trainer_cls

    folder = ROOT / "examples" / "trainers"
    done = subprocess.run(
        [sys.executable, str(folder / "verl" / "prepare.py"), "--out", "data", "--updates", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder / "shared")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with initialize_config_dir(config_dir=str(folder / "verl"), version_base=None):
        config = compose(
            mode,
            overrides=[
                f"actor_rollout_ref.model.path={tiny.path}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/verl/loops.yaml",
            ],
        )
    whole = tmp_path / "whole.yaml"
    OmegaConf.save(config, whole, resolve=True)
    sys.path[:0] = [str(folder / "shared"), str(folder / "verl")]
    try:
        assert lint("verl", whole, [tmp_path / "data" / "train.parquet"]) == []
        (entry,) = OmegaConf.load(folder / "verl" / "loops.yaml")
        assert issubclass(get_class(entry["_target_"]), verl.TrajgymAgentLoop)
    finally:
        del sys.path[:2]
    assert get_trainer_cls(config.trainer.v1.trainer_mode) is getattr(verl, TRAINERS[mode])


def page() -> str:
    return (ROOT / "docs" / "verl.md").read_text()


def test_the_pages_snippets_name_what_exists() -> None:
    """Every import in the page's snippets works, and every snippet is Python."""
    snippets = re.findall(r"^```py(?:thon)?\n(.*?)^```", page(), re.M | re.S)
    assert snippets
    for snippet in snippets:
        for node in ast.walk(ast.parse(snippet)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_the_pages_traps_name_tests_that_exist() -> None:
    """Each row of the table of traps ends with a test, or with the reason why there is none."""
    tests = {
        name
        for folder in ("tests/verl", "tests/adapters", "tests/verl_differential")
        for file in (ROOT / folder).glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M)
    }
    table = page().partition("## Traps")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[-1])
        assert named or row[-1].strip() == "none: not ours", row
        assert set(named) <= tests, row
