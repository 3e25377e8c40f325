"""The agent loop in verl's own V1 chain: workers, TransferQueue and replay buffer in local Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trl.tiny import tasks
from tests.verl.fake import FakeServers
from trajgym.adapters.verl import write_prompts
from trajgym.envs import EnvSpec


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two tasks as verl's data."""
    path = tmp_path / "train.parquet"
    assert write_prompts(path, tasks(2), EnvSpec(id="tests.trl.tiny:Words")) == 2
    return path


def test_a_column_is_enough(chain: Any, prompts: Path) -> None:
    """With agent_name in the data, verl's workers play our sessions and queue their rows."""
    rows = chain.rollout(prompts, FakeServers())
    assert set(rows.statuses.values()) == {"finished"}
    assert len(rows) == 8
    print(rows.by_key("rm_scores"))
