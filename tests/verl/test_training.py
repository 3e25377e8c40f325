"""verl's own SFT trainer and actor worker (FSDP2), on this CPU, on what we wrote for them."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tests.trl.runs import Recorded
from tests.verl.chain import ROOT
from trajgym.adapters.verl import ReplayShape, write_replay, write_sft_tokens
from trajgym.rewards import Advantages, Deriver, TurnTable
from trajgym.trajectory import build_rows

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "tests.verl.cpu_platform",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_ENGINE_VENDOR": "nvidia",
    "HYDRA_FULL_ERROR": "1",
    "OMP_NUM_THREADS": "1",
}


class LongWords(Deriver):
    """Turns are good if the environment rewarded their word, independently of other turns."""

    name = "test_long_words"

    def derive(self, table: TurnTable) -> Advantages:
        liked = (table.env_reward > 0) * 1.0
        return Advantages(table, np.where(table.scored, liked - liked.mean(), 0.0), self.stamp)


SHAPE = ReplayShape(
    experiment="e", project="p", prompts=4, samples=5, prompt_length=512, response_length=512
)


def torchrun(folder: Path, *words: str) -> str:
    """Run a module as verl is run, on one process, and return what it said."""
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=1"),
            *("-m", *words),
        ],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def test_the_actor_moves_with_each_turns_advantage(
    tiny: Any, recorded: Recorded, tmp_path: Path
) -> None:
    """Verl's FSDP2 actor has the recorded log-probs, and its PPO steps move each turn its way."""
    derived = LongWords()
    values = derived.derive(derived.table(recorded.groups, recorded.trees))
    assert write_replay(tmp_path / "dump", recorded.trees, recorded.groups, values, SHAPE) == 1
    batch = SHAPE.folder(tmp_path / "dump") / "1" / "0" / "tq_batch.pt"
    result = tmp_path / "result.json"
    torchrun(tmp_path, "tests.verl.actor", tiny.path, str(batch), str(result))
    found = json.loads(result.read_text())
    assert found["gap"] < 1e-4
    turns = []
    for moved, advantages in zip(found["moved"], found["advantages"], strict=True):
        runs = itertools.groupby(zip(advantages, moved, strict=True), key=lambda pair: pair[0])
        turns += [(value, sum(step for _, step in run)) for value, run in runs if value]
    assert len(turns) == sum(len(tree.turns) for tree in recorded.trees)
    up = [moved for value, moved in turns if value > 0]
    down = [moved for value, moved in turns if value < 0]
    assert fmean(up) > 0 > fmean(down)
    assert min(up) > max(down)


def test_the_sft_trainer_learns_exactly_the_sampled_ids(
    tiny: Any, recorded: Recorded, tmp_path: Path
) -> None:
    """The first loss of verl's SFT trainer is the mean log-prob that was recorded, and it falls."""
    data = tmp_path / "sft.parquet"
    count = write_sft_tokens(data, recorded.trees, recorded.groups, include="all")
    said = torchrun(
        tmp_path,
        "verl.trainer.sft_trainer",
        f"data.train_files={data}",
        f"data.train_batch_size={count}",
        "data.micro_batch_size_per_gpu=4",
        "data.use_dynamic_bsz=False",
        "data.num_workers=0",
        "data.custom_cls.path=pkg://trajgym.adapters.verl",
        "data.custom_cls.name=TokenDataset",
        f"model.path={tiny.path}",
        "model.use_remove_padding=False",
        "model.enable_gradient_checkpointing=False",
        "+model.override_config.attn_implementation=sdpa",
        "optim.lr=2e-3",
        "trainer.device=cpu",
        "trainer.logger=[console]",
        "trainer.total_epochs=3",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        f"trainer.default_local_dir={tmp_path / 'checkpoints'}",
        "engine.strategy=fsdp2",
        "engine.model_dtype=fp32",
        "engine.dtype=float32",
    )
    losses = [
        float(value) for value in re.findall(r"train/loss:(?:np\.float64\()?([\d.e-]+)", said)
    ]
    assert len(losses) == 3
    rows = [row for tree in recorded.trees for row in build_rows(tree).rows]
    logprobs = np.concatenate([row.logprobs[row.loss_mask] for row in rows])
    assert losses[0] == pytest.approx(-logprobs.mean(), rel=1e-2)
    assert losses[-1] < losses[0]
