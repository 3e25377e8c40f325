"""A recorded run through AReaL's own executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.areal.test_workflow import WITHIN, unpadded, within
from tests.trl.runs import record
from trajgym.adapters.areal import replay_dataset
from trajgym.rewards import GRPO
from trajgym.trajectory import InvalidInput, Store


def test_a_run_is_replayed_token_for_token(
    tiny: Any, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """Every row of the run comes out of `prepare_batch` once, as it was recorded."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    from trajgym.adapters.areal import ReplayWorkflow

    run = record(tiny, tmp_path / "run")
    rows = {r.input_ids.tobytes(): r for _, rows in run.rows(GRPO()) for r in rows}
    flow = ReplayWorkflow(tmp_path / "run")
    data = StatefulDataLoader(replay_dataset(tmp_path / "run"), 2, collate_fn=lambda x: x)
    made = engine(max_head_offpolicyness=0)
    seen = 0
    for version in range(2):
        for trajectory in within(WITHIN, made.prepare_batch, data, flow, group_size=1):
            for arrays in unpadded(trajectory):
                row = rows[arrays["input_ids"].tobytes()]
                seen += 1
                np.testing.assert_array_equal(arrays["loss_mask"], row.loss_mask)
                np.testing.assert_array_equal(arrays["logprobs"], row.logprobs)
                np.testing.assert_array_equal(arrays["versions"], row.version_low)
                np.testing.assert_array_equal(-arrays["values"][:-1], row.advantage[1:])
        made.set_version(version + 1)
    assert seen == sum(len(rows) for _, rows in run.rows(GRPO())) == 16


async def test_a_run_without_groups_is_refused(tmp_path: Path) -> None:
    """An empty run is an error before any training begins."""
    async with Store(tmp_path):
        pass
    with pytest.raises(InvalidInput, match="nothing to replay"):
        replay_dataset(tmp_path)
