"""The agent loop in verl's V1 chain: workers, TransferQueue and replay buffer in local Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trl.tiny import tasks
from tests.verl.fake import FakeServers
from trajgym.adapters.verl import write_prompts
from trajgym.envs import EnvSpec

WORDS = EnvSpec(id="tests.trl.tiny:Words")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two tasks as verl's data."""
    path = tmp_path / "train.parquet"
    assert write_prompts(path, tasks(2), WORDS) == 2
    return path


def test_a_column_is_enough(chain: Any, prompts: Path) -> None:
    """With agent_name in the data, verl's workers play our sessions and queue their rows."""
    rows = chain.rollout(prompts, FakeServers())
    assert set(rows.statuses.values()) == {"finished"}
    scores = {key: sum(values) for key, values in rows.by_key("rm_scores").items()}
    assert scores == pytest.approx({(p, s, 0): s / 3 for p in range(2) for s in range(4)})
    masks, logprobs = rows.get("response_mask"), rows.get("rollout_log_probs")
    for mask, values in zip(masks, logprobs, strict=True):
        assert mask[-1] == 1
        assert [value != 0 for value in values] == [bool(m) for m in mask]
    assert all(type(tag["min_global_steps"]) is int for tag in rows.batch.tags)
