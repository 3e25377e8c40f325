"""The groups of a session server through AReaL's own executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.areal.test_workflow import WITHIN, unpadded, within
from tests.feeding import farm
from trajgym.adapters.areal import feed_dataset
from trajgym.trajectory import InvalidInput


def test_fed_groups_are_trained_token_for_token(engine: Callable[..., Any], tmp_path: Path) -> None:
    """Every row of the fed groups comes out of `prepare_batch` once, as the server recorded it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    from trajgym.adapters.areal import FeedWorkflow

    with farm(tmp_path) as agents:
        for i in range(4):
            agents.group(f"g{i}", 1.0, 0.0)
        rows = agents.rows()
        flow = FeedWorkflow(agents.url, seconds=240, max_staleness=8)
        data = StatefulDataLoader(feed_dataset(4), 2, collate_fn=lambda x: x)
        made = engine(max_head_offpolicyness=0)
        for version in range(2):
            for trajectory in within(WITHIN, made.prepare_batch, data, flow, group_size=1):
                for arrays in unpadded(trajectory):
                    row = rows.pop(arrays["input_ids"].tobytes())
                    assert row.advantage is not None
                    np.testing.assert_array_equal(arrays["loss_mask"], row.loss_mask)
                    np.testing.assert_array_equal(arrays["logprobs"], row.logprobs)
                    np.testing.assert_array_equal(arrays["versions"], row.version_low)
                    np.testing.assert_array_equal(-arrays["values"][:-1], row.advantage[1:])
            assert agents.version == version
            made.set_version(version + 1)
        assert not rows
        assert agents.acknowledged == {"trainer": 0}


def test_a_data_set_stands_for_groups() -> None:
    """It has one element for each group of an epoch."""
    assert len(feed_dataset(3)) == 3
    with pytest.raises(InvalidInput):
        feed_dataset(0)
